"""Stages I and II learn what is known to be best, and count what they use."""

from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cluster_of, graph_of, problem_without_ties, random_problem
from torch.utils.data import DataLoader

from doppler.baselines import CriticalPath, TaughtPlacement
from doppler.baselines.levels import b_level_priority
from doppler.episode import make_view
from doppler.errors import InputError
from doppler.policies import DualPolicy
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.stages.best_so_far import NOTHING, BestSoFar, Found
from doppler.stages.checkpoints import effort_of, found_of, save_checkpoint
from doppler.stages.imitation import Imitation
from doppler.stages.optimisation import Effort, Updates, seeded_generator
from doppler.stages.reinforcement import Reinforcement


def make_policy(seed: int) -> DualPolicy:
    torch.manual_seed(seed)
    return DualPolicy(
        encoder="gated",
        hidden=16,
        rounds=2,
        sel_hidden=16,
        plc_hidden=16,
        sel="learned",
        plc="learned",
        look_ahead=True,
    )


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


def reinforcement(
    problem: Problem,
    session,
    *,
    confirmations: int = 0,
    on_best: Callable[[Placement, float], None] = lambda placement, seconds: None,
    **changes,
) -> Reinforcement:
    settings = {
        "title": "test",
        "policy": make_policy(0),
        "view": make_view(problem),
        "best": BestSoFar(session=session, confirmations=confirmations, seed=0, on_best=on_best),
        "evaluations": 100,
        "batch_episodes": 16,
        "greedy_every": 8,
        "exploration": None,
        "advantage": "batch",
        "learning_rate": 1e-2,
        "final_learning_rate": 1e-3,
        "entropy": 1e-2,
        "tuned_updates": None,
        "merged_episodes": 0,
        "clusterings": 0,
        "imitate_best": 0.0,
        "seed": 0,
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


@pytest.mark.parametrize("seed", [0, 1, 4])
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
            on_best_greedy=lambda: greedy.append(module.greedy.seconds),
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
    assert (module.best.placement, module.best_s) == told[-1]
    assert len(greedy) >= 1
    assert greedy == sorted(set(greedy), reverse=True)
    assert module.greedy.seconds == greedy[-1] >= module.best_s


def test_the_best_placement_becomes_the_greedy_one_where_it_is_imitated(tmp_path):
    problem = random_problem(6, num_ops=11, num_devices=2, costs="distinct")
    greedy_over_best = []
    for weight in (0.0, 1.0):
        with WorkConserving().open(problem) as session:
            module = reinforcement(problem, session, evaluations=600, imitate_best=weight)
            fit(module, tmp_path)
            module.try_greedy()
        greedy_over_best.append(module.greedy.seconds / module.best_s)
    without, imitated = greedy_over_best
    assert imitated == 1.0 < without


class Views:
    """Passes rollouts on, and notes how many episodes there were, and of which groups."""

    def __init__(self, policy: DualPolicy) -> None:
        self.policy, self.noted = policy, []

    def __call__(self, view, num_episodes, explore, rng):
        self.noted.append((num_episodes, tuple(view.arrays.group.tolist())))
        return type(self.policy).rollout(self.policy, view, num_episodes, explore, rng)


def test_the_first_updates_also_place_groups_another_merging_each(tmp_path):
    problem, policy = random_problem(6, num_ops=11, num_devices=2, costs="distinct"), make_policy(0)
    policy.rollout = views = Views(policy)
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            problem, session, policy=policy, evaluations=110, merged_episodes=3, tuned_updates=4
        )
        fit(module, tmp_path)
    assert module.num_updates == 6
    played = [num for num, _ in views.noted if num > 1]  # one episode: the greedy one
    assert played == [16, 3] * 4 + [16] * 2
    assert {groups for num, groups in views.noted if num == 16} == {tuple(range(11))}
    assert len({groups for num, groups in views.noted if num == 3}) > 1


def test_a_policy_that_knows_no_groups_is_not_asked_to_place_them(tmp_path):
    problem, policy = two_chains(), make_policy(0)
    policy.keeps_groups = False
    policy.rollout = views = Views(policy)
    with WorkConserving().open(problem) as session:
        module = reinforcement(problem, session, policy=policy, merged_episodes=3, clusterings=3)
        fit(module, tmp_path)
    assert {num for num, _ in views.noted} == {1, 16}
    assert session.evaluations == module.num_episodes + len(views.noted) - module.num_updates


@pytest.mark.parametrize("kind", ["merged_episodes", "clusterings"])
def test_groups_may_be_the_best_so_far_but_no_gradient_comes_of_them(tmp_path, kind):
    # The edges within a chain cost more than all work: merged, a chain is one decision.
    best_s, weights = [], []
    for num in (0, 8):
        with WorkConserving().open(two_chains()) as session:
            one_update = {"evaluations": 18 + num, "seed": 1}
            module = reinforcement(two_chains(), session, **{kind: num}, **one_update)
            fit(module, tmp_path)
        assert module.num_updates == 1
        best_s.append(module.best_s)
        weights.append(torch.cat([p.detach().flatten() for p in module.policy.parameters()]))
    assert best_s[0] > best_s[1]
    assert torch.equal(*weights)


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
        self.is_random = session.is_random

    def measure(self, device_BV, priority_BV=None, repeats=1, rng=None):
        self.executed += len(device_BV) * repeats
        return self.session.measure(device_BV, priority_BV, repeats, rng)


@pytest.mark.parametrize(("merged_episodes", "clusterings"), [(0, 0), (5, 2)])
@pytest.mark.parametrize(
    ("evaluations", "batch_episodes", "greedy_every"),
    [(18, 16, 8), (33, 16, 1), (100, 16, 8), (60, 7, 3)],
)
def test_a_training_executes_as_often_as_it_says_and_no_more_than_it_may(
    tmp_path, evaluations, batch_episodes, greedy_every, merged_episodes, clusterings
):
    evaluations += merged_episodes + clusterings
    problem = two_chains()
    with WorkConserving().open(problem) as session:
        counting = CountingSession(session)
        module = reinforcement(
            problem,
            counting,
            evaluations=evaluations,
            batch_episodes=batch_episodes,
            greedy_every=greedy_every,
            merged_episodes=merged_episodes,
            clusterings=clusterings,
        )
        fit(module, tmp_path)
        module.try_greedy()  # as a run does at the end
        assert counting.executed == session.evaluations == module.evaluations_used
    assert module.evaluations_used <= evaluations
    assert module.episodes_done == module.num_episodes == module.num_updates * batch_episodes


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(1, 100),
    st.integers(1, 50),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_the_budget_is_kept_and_used_up_to_less_than_one_more_update(
    evaluations, batch_episodes, greedy_every, merged_episodes, clusterings
):
    def used(num_updates: int) -> int:
        """Episodes, a greedy one before every greedy_every-th update and one at the end."""
        greedy = sum(1 for update in range(num_updates) if update % greedy_every == 0) + 1
        grouped = (merged_episodes + clusterings) * min(num_updates, 7)
        return num_updates * batch_episodes + grouped + greedy

    changes = {
        "evaluations": evaluations,
        "batch_episodes": batch_episodes,
        "greedy_every": greedy_every,
        "tuned_updates": 7,
        "merged_episodes": merged_episodes,
        "clusterings": clusterings,
        "policy": ANY,
        "view": None,
    }
    if used(1) > evaluations:
        with pytest.raises(InputError, match=r"^budget\.evaluations: "):
            Reinforcement(**{**BARE, **changes})
        return
    module = Reinforcement(**{**BARE, **changes})
    assert module.evaluations_used == used(module.num_updates) <= evaluations
    assert used(module.num_updates + 1) > evaluations


ANY = SimpleNamespace(keeps_groups=True)  # for a policy that nothing asks for episodes
BARE = {
    "title": "test",
    "best": BestSoFar(session=None, confirmations=0, seed=0, on_best=print),
    "exploration": None,
    "advantage": "batch",
    "learning_rate": 1.0,
    "final_learning_rate": 0.1,
    "entropy": 0.0,
    "tuned_updates": None,
    "merged_episodes": 0,
    "clusterings": 0,
    "imitate_best": 0.0,
    "seed": 0,
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


# --- Exploration, and what says which placement is the best ---------------------------------------


class Explored:
    """Passes rollouts on, and notes how they explore."""

    def __init__(self, policy: DualPolicy) -> None:
        self.policy, self.noted = policy, []

    def __call__(self, view, num_episodes, explore, rng):
        self.noted.append((num_episodes, explore))
        return type(self.policy).rollout(self.policy, view, num_episodes, explore, rng)


def test_exploration_falls_linearly_to_nothing_and_the_greedy_placement_knows_none(tmp_path):
    problem, policy = two_chains(), make_policy(0)
    policy.rollout = explored = Explored(policy)
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            problem,
            session,
            policy=policy,
            **{"batch_episodes": 1, "evaluations": 7, "greedy_every": 5, "exploration": 0.2},
        )
        assert module.num_updates == 5
        fit(module, tmp_path)
        module.try_greedy()
    assert [num for num, _ in explored.noted] == [1] * 7
    shares = [explore for _, explore in explored.noted]
    assert shares == pytest.approx([0.0, 0.2, 0.16, 0.12, 0.08, 0.04, 0.0])


def test_epsilon_greedy_episodes_one_an_update_under_the_running_mean_learn_too(tmp_path):
    # Not to the optimum for certain: that takes samples, and comparisons within a batch.
    problem, policy = two_chains(), make_policy(4)
    before = greedy_s(policy, problem)
    paper = {"batch_episodes": 1, "exploration": 0.2, "advantage": "running_mean", "entropy": 0.0}
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            problem,
            session,
            policy=policy,
            **{**paper, "evaluations": 700, "greedy_every": 20, "learning_rate": 2e-3},
        )
        fit(module, tmp_path)
    assert greedy_s(policy, problem) <= before / 2
    assert module.past.count == module.num_episodes == 665


@pytest.mark.parametrize("confirmations", [0, 1, 5])
def test_under_jitter_the_best_is_told_by_executions_of_its_own(tmp_path, confirmations):
    problem, told = two_chains(), []
    with WorkConserving(noise=0.2).open(problem) as session:
        module = reinforcement(
            problem,
            counting := CountingSession(session),
            confirmations=confirmations,
            evaluations=300,
            on_best=lambda placement, seconds: told.append((placement, seconds)),
        )
        fit(module, tmp_path)
        module.try_greedy()
        assert counting.executed == module.best.evaluations == module.evaluations_used <= 300
    assert [s for _, s in told] == sorted({s for _, s in told}, reverse=True)
    # What a placement counts for is a matter of the placement, and not of luck.
    with WorkConserving(noise=0.2).open(problem) as session:
        again = [
            session.measure(
                placement.device[None],
                placement.priority[None],
                repeats=max(1, confirmations),
                rng=seeded_generator(0, "confirmation"),
            ).cost_s()[0]
            for placement, _ in told
        ]
    assert ([s for _, s in told] == again) == (confirmations > 0)


def test_all_episodes_of_a_batch_are_executed_under_the_same_fresh_draw(tmp_path):
    problem, measured = two_chains(), []
    # Without exploration and without learning all episodes are the same.
    still = {"exploration": 0.0, "learning_rate": 1e-12, "final_learning_rate": 1e-12}
    with WorkConserving(noise=0.2).open(problem) as session:
        module = reinforcement(problem, session, confirmations=2, evaluations=100, **still)
        execute = module.best.measure

        def executed(device_BV, priority_BV, rng):
            assert (device_BV == device_BV[0]).all()
            measurement = execute(device_BV, priority_BV, rng)
            measured.append(measurement.cost_s().tolist())
            return measurement

        module.best.measure = executed
        fit(module, tmp_path)
    assert all(batch == batch[:1] * 16 for batch in measured)
    assert len({batch[0] for batch in measured}) == len(measured) == module.num_updates


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exploration", -0.1, "must be a number of at least 0"),
        ("tuned_updates", 0, "must be a whole number of at least 1"),
        ("merged_episodes", -1, "must be a whole number of at least 0"),
        ("clusterings", -1, "must be a whole number of at least 0"),
        ("merged_episodes", 1.5, "must be a whole number of at least 0, got 1.5"),
        ("batch_episodes", True, "must be a whole number of at least 1, got True"),
        ("advantage", "median", "'median' is not one of batch, running_mean"),
    ],
)
def test_what_training_cannot_do_is_refused_by_name(key, value, message):
    with pytest.raises(InputError, match=rf"^algorithm\.reinforcement\.{key}: {message}"):
        Reinforcement(**{**BARE, "evaluations": 100, **LEAST, key: value})


@pytest.mark.parametrize(
    ("tuned_updates", "rate", "entropy"),
    [(None, 1.0, 0.5), (200, 1.0, 0.5), (50, 1 / np.sqrt(2), 1.0), (1, 0.1, 1.5)],
)
def test_longer_training_learns_slower_and_explores_more(tuned_updates, rate, entropy):
    # 100 episodes, 100 greedy ones, and one at the end.
    settings = {**BARE, **LEAST, "evaluations": 201, "entropy": 0.5}
    module = Reinforcement(**{**settings, "tuned_updates": tuned_updates})
    assert module.num_updates == 100
    assert module.learning_rate == pytest.approx(rate)
    assert module.final_learning_rate == pytest.approx(0.1 * rate)
    assert module.entropy == pytest.approx(entropy)


LEAST = {"batch_episodes": 1, "greedy_every": 1, "policy": ANY, "view": None}


# --- Imitation ----------------------------------------------------------------------------------


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


def test_imitation_of_one_placement_makes_it_the_greedy_one(tmp_path):
    problem = problem_without_ties()
    # The last op has the smallest priority: it waits for its producers all the same.
    placement = Placement.make(problem, [0, 1, 1, 2, 0, 2, 1, 0], [1, 4, 2, 5, 3, 7, 6, 0])
    module = imitation(problem, teacher=TaughtPlacement.of(problem, placement))
    policy: DualPolicy = module.policy
    rng = np.random.default_rng(0)
    taught = module.teacher.decide(problem, 1, rng)
    before = policy.follow(module.view, *taught).log_prob
    fit(module, tmp_path)
    assert policy.follow(module.view, *taught).log_prob > max(before + 3, np.log(0.5))
    played = policy.rollout(module.view, 1, 0.0, rng)
    assert played.op.tolist() == [[0, 2, 4, 1, 3, 6, 5, 7]]
    assert played.placements()[0].tolist() == [placement.device.tolist()]


def test_what_the_teacher_used_is_counted_and_survives_the_checkpoint(tmp_path):
    problem = two_chains()
    found = Found(Placement.make(problem, [0, 1, 1, 0, 0, 0, 1, 1, 0]), 9.5)
    module = imitation(problem, episodes=32, inherited=Effort(70, 1000.0), found=found)
    trainer = fit(module, tmp_path)
    assert 1000 < module.elapsed_s < 2000
    save_checkpoint(trainer, tmp_path / "last.ckpt")
    kept = found_of(tmp_path / "last.ckpt", problem)
    assert kept.placement is not None
    assert kept.placement.device.tolist() == found.placement.device.tolist()
    assert kept.seconds == module.best_s == 9.5
    assert found_of(tmp_path / "last.ckpt", problem_without_ties()) == NOTHING
    effort = effort_of(tmp_path / "last.ckpt")
    assert (effort.evaluations, effort.seconds) == (70, module.elapsed_s)


def test_imitation_counts_whole_batches():
    module = imitation(two_chains(), episodes=100, batch_episodes=16)
    assert (module.num_updates, module.num_episodes) == (6, 96)
    assert imitation(two_chains(), episodes=3, batch_episodes=16).num_updates == 1
