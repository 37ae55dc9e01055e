"""Stages I and II learn what is known to be best, and count what they use."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cluster_of, graph_of
from torch.utils.data import DataLoader

from doppler.baselines import CriticalPath
from doppler.baselines.levels import b_level_priority
from doppler.episode import make_view
from doppler.errors import InputError
from doppler.policies import DualPolicy
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving
from doppler.stages.imitation import Imitation
from doppler.stages.optimisation import Updates
from doppler.stages.reinforcement import Reinforcement, batch_advantage


def make_policy(seed: int) -> DualPolicy:
    torch.manual_seed(seed)
    return DualPolicy(hidden=16, rounds=2, sel_hidden=16, plc_hidden=16)


def fit(module: pl.LightningModule, directory: Path, callbacks: tuple = ()) -> pl.Trainer:
    """Train as a run does."""
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        max_steps=module.num_updates,
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        default_root_dir=directory,
        callbacks=list(callbacks),
    )
    trainer.fit(module, DataLoader(Updates(), batch_size=None))
    return trainer


def reinforcement(problem: Problem, session, **changes) -> Reinforcement:
    settings = {
        "title": "test",
        "policy": make_policy(0),
        "view": make_view(problem),
        "session": session,
        "evaluations": 100,
        "batch_episodes": 16,
        "greedy_every": 8,
        "learning_rate": 1e-2,
        "final_learning_rate": 1e-3,
        "entropy": 1e-2,
        "seed": 0,
        "on_best": lambda placement, seconds: None,
        "on_best_greedy": lambda: None,
    }
    return Reinforcement(**{**settings, **changes})


def two_chains() -> Problem:
    """Two chains of four ops with heavy edges, joined at the end by light ones; two devices.

    A chain on one device costs nothing to move and both chains run side by side: 4 s, then 1 s to
    move one result, then 1 s for the op that joins them.
    """
    chains = [[0, 1, 2, 3], [4, 5, 6, 7]]
    edges = [(u, v, 4.0) for chain in chains for u, v in pairwise(chain)]
    edges += [(3, 8, 1.0), (7, 8, 1.0)]
    return build(graph_of([1.0] * 9, edges), cluster_of([1.0, 1.0]))


OPTIMUM_S = 6.0


def greedy_s(policy: DualPolicy, problem: Problem) -> float:
    rng = np.random.default_rng(0)
    placements = policy.rollout(make_view(problem), 1, 0.0, rng).placements()
    with WorkConserving().open(problem) as session:
        return float(session.measure(*placements).cost_s()[0])


# --- Reinforcement ------------------------------------------------------------------------------


def test_the_optimum_of_the_two_chains_is_known_by_enumeration():
    problem = two_chains()
    device_BV = np.array(list(product((0, 1), repeat=9)))
    priority_BV = np.tile(b_level_priority(problem), (len(device_BV), 1))
    with WorkConserving().open(problem) as session:
        cost_B = session.measure(device_BV, priority_BV).cost_s()
    assert cost_B.min() == OPTIMUM_S
    assert (cost_B == OPTIMUM_S).sum() == 4  # which chain goes where, and the last op on either


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reinforcement_makes_the_greedy_placement_optimal(tmp_path, seed):
    problem, policy = two_chains(), make_policy(seed)
    assert greedy_s(policy, problem) > OPTIMUM_S, "nothing is left to learn"
    with WorkConserving().open(problem) as session:
        module = reinforcement(problem, session, policy=policy, evaluations=1500, seed=seed)
        fit(module, tmp_path)
    assert module.best_s == OPTIMUM_S
    assert greedy_s(policy, problem) == OPTIMUM_S


def test_the_best_placement_is_told_when_it_is_found_and_costs_what_is_said(tmp_path):
    problem, told, greedy = two_chains(), [], []
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            problem,
            session,
            evaluations=400,
            on_best=lambda placement, seconds: told.append((placement, seconds)),
            on_best_greedy=lambda: greedy.append(module.greedy_s),
        )
        fit(module, tmp_path)
        module.try_greedy()
        for placement, seconds in told:
            assert (
                session.measure(placement.device[None], placement.priority[None]).cost_s()
                == seconds
            )
    seconds = [s for _, s in told]
    assert seconds == sorted(set(seconds), reverse=True)
    assert (module.best_placement, module.best_s) == told[-1]
    assert len(greedy) >= 1
    assert greedy == sorted(set(greedy), reverse=True)
    assert module.greedy_s == greedy[-1] >= module.best_s


def test_training_repeats_itself_with_the_same_seed(tmp_path):
    problem, weights = two_chains(), []
    for seed in (1, 1, 2):
        with WorkConserving().open(problem) as session:
            module = reinforcement(problem, session, policy=make_policy(0), seed=seed)
            fit(module, tmp_path)
        weights.append(torch.cat([p.detach().flatten() for p in module.policy.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


class CountingSession:
    """Passes everything on, and counts the placements that are executed."""

    def __init__(self, session) -> None:
        self.session, self.problem, self.executed = session, session.problem, 0

    def measure(self, device_BV, priority_BV=None, repeats=1, rng=None):
        self.executed += len(device_BV) * repeats
        return self.session.measure(device_BV, priority_BV, repeats, rng)


@pytest.mark.parametrize(
    ("evaluations", "batch_episodes", "greedy_every"),
    [(18, 16, 8), (33, 16, 1), (100, 16, 8), (60, 7, 3)],
)
def test_a_training_executes_as_often_as_it_says_and_no_more_than_it_may(
    tmp_path, evaluations, batch_episodes, greedy_every
):
    problem = two_chains()
    with WorkConserving().open(problem) as session:
        counting = CountingSession(session)
        module = reinforcement(
            problem,
            counting,
            evaluations=evaluations,
            batch_episodes=batch_episodes,
            greedy_every=greedy_every,
        )
        fit(module, tmp_path)
        module.try_greedy()  # as a run does at the end
        assert counting.executed == session.evaluations == module.evaluations_used
    assert module.evaluations_used <= evaluations
    assert module.episodes_done == module.num_episodes == module.num_updates * batch_episodes


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 100), st.integers(1, 50))
def test_the_budget_is_kept_and_used_up_to_less_than_one_more_update(
    evaluations, batch_episodes, greedy_every
):
    def used(num_updates: int) -> int:
        """Episodes, a greedy one before every greedy_every-th update and one at the end."""
        greedy = sum(1 for update in range(num_updates) if update % greedy_every == 0) + 1
        return num_updates * batch_episodes + greedy

    changes = {
        "evaluations": evaluations,
        "batch_episodes": batch_episodes,
        "greedy_every": greedy_every,
        "policy": None,
        "view": None,
    }
    if used(1) > evaluations:
        with pytest.raises(InputError, match=r"^budget\.evaluations: "):
            Reinforcement(**{**BARE, **changes})
        return
    module = Reinforcement(**{**BARE, **changes})
    assert module.evaluations_used == used(module.num_updates) <= evaluations
    assert used(module.num_updates + 1) > evaluations


BARE = {
    "title": "test",
    "session": None,
    "learning_rate": 1.0,
    "final_learning_rate": 0.1,
    "entropy": 0.0,
    "seed": 0,
    "on_best": lambda placement, seconds: None,
    "on_best_greedy": lambda: None,
}


class Rates(pl.Callback):
    """The learning rate that every update used, and the one that is left."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.used = [*getattr(self, "used", []), trainer.optimizers[0].param_groups[0]["lr"]]

    def on_train_end(self, trainer, pl_module):
        self.left = trainer.optimizers[0].param_groups[0]["lr"]


def test_the_learning_rate_falls_linearly_from_the_first_to_the_final_one(tmp_path):
    problem, rates = two_chains(), Rates()
    with WorkConserving().open(problem) as session:
        module = reinforcement(problem, session, batch_episodes=4, evaluations=47, greedy_every=10)
        assert module.num_updates == 11
        fit(module, tmp_path, (rates,))
    every = [*rates.used, rates.left]
    assert every == pytest.approx(np.linspace(1e-2, 1e-3, 12).tolist())


# --- The advantage ------------------------------------------------------------------------------


def test_the_advantage_is_the_distance_below_the_mean_in_standard_deviations():
    # Mean 5, deviations -3, -1, 1, 3: standard deviation sqrt(5).
    advantage = batch_advantage(np.array([2.0, 4.0, 6.0, 8.0]))
    assert advantage.tolist() == pytest.approx([3 / 5**0.5, 1 / 5**0.5, -1 / 5**0.5, -3 / 5**0.5])


def test_an_infeasible_episode_counts_as_the_worst_and_the_spread_more():
    # Feasible costs 2 to 4: the infeasible one counts 6.
    advantage = batch_advantage(np.array([2.0, np.inf, 4.0]))
    deviation = (8 / 3) ** 0.5
    assert advantage.tolist() == pytest.approx([2 / deviation, -2 / deviation, 0])


def test_among_equal_feasible_costs_an_infeasible_one_counts_a_tenth_more():
    assert batch_advantage(np.array([5.0, np.inf])).tolist() == pytest.approx([1, -1])
    three = batch_advantage(np.array([5.0, 5.0, np.inf]))
    assert three.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, -(2**0.5)])


@pytest.mark.parametrize("costs", [[3.0, 3.0], [np.inf, np.inf], [0.0, 0.0], [7.0], [0.1 * 3, 0.3]])
def test_where_nothing_is_better_than_anything_else_there_is_no_advantage(costs):
    assert batch_advantage(np.array(costs)).tolist() == [0.0] * len(costs)


def test_the_advantage_does_not_depend_on_the_unit_of_time():
    costs = np.array([1.0, 5.0, np.inf, 2.0])
    np.testing.assert_allclose(batch_advantage(costs), batch_advantage(costs * 1e-9))


# --- Imitation ----------------------------------------------------------------------------------


def problem_without_ties() -> Problem:
    """A source that only device 0 runs, then unequal ops over unequal links: one schedule."""
    graph = graph_of(
        [8, 24, 36, 20, 44, 16, 28, 12],
        [
            *((0, v, 3.0) for v in (1, 2, 3, 4)),
            *((1, 5, 10.0), (2, 5, 7.0), (3, 6, 13.0), (4, 6, 2.0), (5, 7, 5.0), (6, 7, 9.0)),
        ],
        kinds=["source"] + ["op"] * 7,
    )
    latency_s = np.array([[0, 1, 2], [3, 0, 5], [6, 7, 0]]) / 4
    cluster = cluster_of(
        [4.0, 2.0, 1.0], latency_s=latency_s, unsupported_kinds=[[], ["source"], ["source"]]
    )
    return build(graph, cluster)


def imitation(problem: Problem, **changes) -> Imitation:
    settings = {
        "policy": make_policy(0),
        "view": make_view(problem),
        "teacher": CriticalPath(runs=1),
        "episodes": 960,
        "batch_episodes": 16,
        "learning_rate": 1e-2,
        "final_learning_rate": 1e-3,
        "entropy": 1e-3,
        "seed": 0,
    }
    return Imitation(**{**settings, **changes})


def test_imitation_of_a_teacher_without_ties_ends_in_the_teachers_schedule(tmp_path):
    problem = problem_without_ties()
    rng = np.random.default_rng(0)
    op_BV, device_BV = CriticalPath(runs=1).decide(problem, 8, rng)
    assert (op_BV == op_BV[0]).all(), "the teacher has a choice"
    assert (device_BV == device_BV[0]).all(), "the teacher has a choice"
    assert len(np.unique(device_BV)) > 1, "all on one device shows nothing"
    module = imitation(problem)
    with WorkConserving().open(problem) as session:
        teacher_s = CriticalPath(runs=1).place(session, rng).makespan_s
    policy: DualPolicy = module.policy
    before = policy.follow(module.view, op_BV, device_BV).log_prob.mean()
    assert greedy_s(policy, problem) != teacher_s, "nothing is left to learn"
    fit(module, tmp_path)
    after = policy.follow(module.view, op_BV, device_BV).log_prob.mean()
    assert after > before + 3
    assert after > np.log(0.5)
    assert greedy_s(policy, problem) == teacher_s


def test_imitation_learns_a_teacher_that_draws_among_equal_devices(tmp_path):
    # Every partition of three equal ops is the same to the teacher: one decision, however named.
    problem = build(graph_of([1, 2, 3]), cluster_of([1.0] * 4))
    module = imitation(problem, episodes=480)
    fit(module, tmp_path)
    rng = np.random.default_rng(1)
    policy: DualPolicy = module.policy
    taught = policy.follow(module.view, *module.teacher.decide(problem, 16, rng))
    assert (taught.log_prob > np.log(0.5)).all()
    played = policy.rollout(module.view, 1, 0.0, rng)
    assert played.op.tolist() == [[2, 1, 0]]
    assert len(set(played.device[0].tolist())) == 3


def test_imitation_counts_whole_batches():
    module = imitation(two_chains(), episodes=100, batch_episodes=16)
    assert (module.num_updates, module.num_episodes) == (6, 96)
    assert imitation(two_chains(), episodes=3, batch_episodes=16).num_updates == 1
