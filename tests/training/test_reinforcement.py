"""Stage II on one problem learns what is known to be best, and counts what it uses."""

from itertools import product

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from problems import REPOSITORY, cluster_of, graph_of, random_problem
from trainings import (
    OPTIMUM_S,
    CountingSession,
    NotedRollouts,
    fit,
    greedy_s,
    groups_of,
    make_policy,
    reinforcement,
    two_chains,
    weights_of,
)

from doppler.baselines.levels import b_level_priority
from doppler.problem import build
from doppler.search import NO_PLACEMENT, seeded_generator
from doppler.search.estimating import open_estimates_of
from doppler.simulator import WorkConserving
from doppler.training import Reinforcement, effort_of, found_of, save_checkpoint
from doppler.training.advantage import ADVANTAGES, NO_HISTORY

SOURCES = {"episode", "greedy episode", "merged episode", "clustering"}


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
        module = reinforcement(session, policy=policy, evaluations=1500, seed=seed)
        fit(module, tmp_path)
    assert module.best_s == OPTIMUM_S
    assert greedy_s(policy, problem) == OPTIMUM_S


def test_the_best_placement_is_told_when_it_is_found_and_costs_what_is_said(tmp_path):
    told, greedy = [], []
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(
            session,
            evaluations=400,
            on_best=lambda placement, seconds: told.append((placement, seconds)),
            on_best_weights=lambda: greedy.append(module.problem.greedy.seconds),
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
    assert (module.problem.evaluator.placement, module.best_s) == told[-1]
    assert len(greedy) >= 1
    assert greedy == sorted(set(greedy), reverse=True)
    assert module.problem.greedy.seconds == greedy[-1] >= module.best_s


def test_the_first_updates_also_place_groups_another_merging_each(tmp_path):
    problem = random_problem(6, num_ops=11, num_devices=2, costs="distinct")
    rollouts = NotedRollouts(make_policy(0))
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            session, policy=rollouts.policy, evaluations=122, extra_candidates=3, tuned_updates=4
        )
        fit(module, tmp_path)
    assert module.num_updates == 6
    played = [num for num in rollouts.numbers if num > 1]  # one episode: the greedy one
    assert played == [16, 3] * 4 + [16] * 2
    assert {groups_of(view) for view in rollouts.views_of(16)} == {tuple(range(11))}
    assert len({groups_of(view) for view in rollouts.views_of(3)}) > 1


def test_at_a_rate_of_0_all_is_played_and_nothing_learned(tmp_path):
    policy, rates = make_policy(0), {"learning_rate": [0.0, 0.0]}
    before = torch.cat([p.detach().flatten() for p in policy.parameters()])
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session, policy=policy, extra_candidates=2, **rates)
        fit(module, tmp_path)
        assert session.evaluations == module.effort.evaluations > 50
    assert torch.equal(weights_of(module), before)
    learned = make_policy(0)
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session, policy=learned, extra_candidates=2)
        fit(module, tmp_path)
    assert not torch.equal(weights_of(module), before)


@pytest.mark.parametrize("drafts", [1, 5])
def test_episodes_that_return_become_more_and_are_counted(tmp_path, drafts):
    problem = random_problem(6, num_ops=12, num_devices=3, costs="distinct")
    rollouts = NotedRollouts(make_policy(0))
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            session,
            policy=rollouts.policy,
            evaluations=101,
            batch_episodes=8,
            returning_share=0.75,
            returning_drafts=drafts,
        )
        fit(module, tmp_path)
        assert session.evaluations == module.effort.evaluations
    assert module.num_updates == 12
    whole = [num for num in rollouts.numbers if num > 1]  # one episode: the greedy one
    assert len(whole) == 12 and whole[0] == 8 and whole[-1] == 3
    assert whole == sorted(whole, reverse=True)


def test_what_returning_episodes_improve_keeps_its_source(tmp_path):
    sources = set()
    for seed in range(6):
        problem = random_problem(seed, num_ops=30, num_devices=4, costs="distinct")
        with WorkConserving().open(problem) as session:
            module = reinforcement(
                session, evaluations=400, batch_episodes=8, returning_share=0.75, seed=seed
            )
            fit(module, tmp_path)
        sources.add(module.problem.evaluator.found.source)
    assert sources <= {f"{one}{more}" for one in SOURCES for more in ("", ", returns")}
    assert any(source.endswith(", returns") for source in sources), sources


@pytest.mark.parametrize("is_simulated", [True, False])
def test_of_the_drafts_that_return_the_one_with_the_best_estimate_is_executed(
    tmp_path, is_simulated
):
    """Where the system is no simulator, a simulator estimates."""
    problem = random_problem(6, num_ops=20, num_devices=4, costs="distinct")
    policy, drafts, executed = make_policy(0), [], []
    with WorkConserving().open(problem) as simulator:
        session = simulator if is_simulated else CountingSession(simulator)
        estimates = open_estimates_of(session)
        module = reinforcement(
            session,
            policy=policy,
            evaluations=200,
            batch_episodes=8,
            returning_share=0.75,
            returning_drafts=4,
        )
        evaluator, return_to = module.problem.evaluator, policy.return_to

        def noted_return(view, op_V, device_V, window_B2, rng):
            drawn = return_to(view, op_V, device_V, window_B2, rng)
            is_new_B = ((drawn.op != op_V) | (drawn.device != device_V)).any(axis=1)
            estimated_B = estimates.measure(*drawn.placements()).cost_s()
            drafts.append(np.where(is_new_B, estimated_B, np.inf))
            return drawn

        def noted_measure(device_BV, priority_BV, rng, sources=None):
            num = sum(source.endswith(", returns") for source in sources)
            if num > 0:
                executed.extend(estimates.measure(device_BV[-num:], priority_BV[-num:]).cost_s())
            return type(evaluator).measure(evaluator, device_BV, priority_BV, rng, sources)

        policy.return_to, evaluator.measure = noted_return, noted_measure
        fit(module, tmp_path)
    assert len(drafts) == len(executed) > 10
    assert {len(cost_B) for cost_B in drafts} == {4}
    best = np.min(drafts, axis=1)
    np.testing.assert_array_equal(np.array(executed)[np.isfinite(best)], best[np.isfinite(best)])


def test_the_best_so_far_says_whether_the_policy_placed_it_or_what_else(tmp_path):
    sources = set()
    for seed in range(8):
        with WorkConserving().open(two_chains()) as session:
            module = reinforcement(session, extra_candidates=8, evaluations=36, seed=seed)
            fit(module, tmp_path)
        sources.add(module.problem.evaluator.found.source)
        assert module.problem.greedy.source == "greedy episode"
    assert sources <= SOURCES
    assert len(sources) > 1, sources


def test_groups_may_be_the_best_so_far_but_no_gradient_comes_of_them(tmp_path):
    # The edges within a chain cost more than all work: merged, a chain is one decision.
    best_s, weights = [], []
    for num in (0, 8):
        with WorkConserving().open(two_chains()) as session:
            module = reinforcement(session, extra_candidates=num, evaluations=18 + 2 * num, seed=1)
            fit(module, tmp_path)
        assert module.num_updates == 1
        best_s.append(module.best_s)
        weights.append(weights_of(module))
    assert best_s[0] > best_s[1]
    assert torch.equal(*weights)


def test_what_is_logged_of_an_update_is_of_its_episodes(tmp_path):
    rows = []
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session)
        module.log_update = rows.append
        fit(module, tmp_path)
    rows = [row for row in rows if "mean_s" in row]
    assert len(rows) == module.num_updates
    assert all(OPTIMUM_S <= row["min_s"] <= row["mean_s"] for row in rows)
    assert any(row["min_s"] < row["mean_s"] for row in rows)
    assert all(row["best_s"] <= row["min_s"] for row in rows)


@pytest.mark.parametrize("streams", [1, 2])
def test_the_bound_that_is_logged_is_that_of_the_system(tmp_path, streams):
    problem, rows = build(graph_of([1.0] * 8), cluster_of([1.0, 1.0])), []
    with WorkConserving(streams=streams).open(problem) as session:
        module = reinforcement(session, evaluations=60)
        module.log_update = rows.append
        fit(module, tmp_path)
    bounds = {row["lower_bound_s"] for row in rows}
    assert bounds == {4.0 / streams}
    assert min(row["min_s"] for row in rows) == 4.0 / streams


def test_the_best_is_the_greedy_placement_only_where_nothing_fits(tmp_path):
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session)
        problem = module.problem
        module.try_greedy()
        assert problem.best is problem.evaluator.found
        problem.evaluator.found = NO_PLACEMENT
        assert problem.best is problem.greedy


def test_a_training_without_updates_leaves_the_weights(tmp_path):
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session, evaluations=3)
        assert module.num_updates == 0 and module.rate_left(0) == 1.0
        before = weights_of(module).clone()
        fit(module, tmp_path)
    assert torch.equal(weights_of(module), before)


def test_training_repeats_itself_with_the_same_seed(tmp_path):
    weights = []
    for seed in (1, 1, 2):
        with WorkConserving().open(two_chains()) as session:
            module = reinforcement(session, seed=seed)
            fit(module, tmp_path)
        weights.append(weights_of(module))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("extra_candidates", [0, 1])
@pytest.mark.parametrize(("noise", "confirmations"), [(0.0, 4), (0.2, 0), (0.2, 3)])
@pytest.mark.parametrize(
    ("evaluations", "batch_episodes", "try_every"), [(25, 16, 8), (120, 16, 1), (90, 7, 3)]
)
def test_a_training_executes_as_often_as_it_says_and_no_more_than_it_may(
    tmp_path, evaluations, batch_episodes, try_every, noise, confirmations, extra_candidates
):
    evaluations += 2 * extra_candidates
    with WorkConserving(noise=noise).open(two_chains()) as session:
        counting = CountingSession(session)
        module = reinforcement(
            counting,
            evaluations=evaluations,
            confirmations=confirmations,
            batch_episodes=batch_episodes,
            try_every=try_every,
            extra_candidates=extra_candidates,
            tuned_updates=2,
        )
        fit(module, tmp_path)
        module.try_greedy()  # as a run does at the end
        used = module.options.evaluations(
            module.num_updates, module.problem.evaluator.confirmations
        )
        assert counting.executed == session.evaluations == module.effort.evaluations == used
    assert module.problem.evaluator.confirmations == (confirmations if noise else 0)
    assert used <= evaluations
    assert module.episodes_done == module.num_episodes == module.num_updates * batch_episodes


class Rates(pl.Callback):
    """The learning rate that every update used, and the one that is left."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.used = [*getattr(self, "used", []), trainer.optimizers[0].param_groups[0]["lr"]]

    def on_train_end(self, trainer, pl_module):
        self.left = trainer.optimizers[0].param_groups[0]["lr"]


def test_the_learning_rate_falls_linearly_from_the_first_to_the_last_one(tmp_path):
    rates = Rates()
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session, batch_episodes=4, evaluations=47, try_every=10)
        assert module.num_updates == 11
        fit(module, tmp_path, (rates,))
    every = [*rates.used, rates.left]
    assert every == pytest.approx(np.linspace(1e-2, 1e-3, 12).tolist())


def test_what_training_found_and_used_survives_the_checkpoint(tmp_path):
    problem, path = two_chains(), tmp_path / "last.ckpt"
    with WorkConserving().open(problem) as session:
        module = reinforcement(session, exploration=0.1, advantage="running_mean")
        trainer = fit(module, tmp_path)
        module.try_greedy()
        module.trained = module.problem.evaluator.found, module.effort
        save_checkpoint(trainer, path)
        again = reinforcement(session, exploration=0.1, advantage="running_mean")
        fit(again, tmp_path, from_checkpoint=path)  # all is done: nothing but loading
    found = found_of(path, problem)
    assert found.plain() == module.problem.evaluator.found.plain()
    assert effort_of(path) == module.effort
    assert again.trained is not None and again.trained[0].plain() == found.plain()
    assert again.trained[1] == module.trained[1]
    assert again.score == module.score
    assert again.problem.state() == module.problem.state()
    assert again.problem.history.count == module.num_episodes


# --- Exploration, and what says which placement is the best ---------------------------------------


def test_exploration_falls_linearly_to_nothing_and_the_greedy_placement_knows_none(tmp_path):
    rollouts = NotedRollouts(make_policy(0))
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(
            session,
            policy=rollouts.policy,
            **{"batch_episodes": 1, "evaluations": 7, "try_every": 5, "exploration": 0.2},
            advantage="running_mean",
        )
        assert module.num_updates == 5
        fit(module, tmp_path)
        module.try_greedy()
    assert rollouts.numbers == [1] * 7
    shares = [explore for _, explore, _ in rollouts.noted]
    assert shares == pytest.approx([0.0, 0.2, 0.16, 0.12, 0.08, 0.04, 0.0])


def test_epsilon_greedy_episodes_one_an_update_under_the_running_mean_learn_too(tmp_path):
    # Not to the optimum for certain: that takes samples, and comparisons within a batch.
    problem, policy = two_chains(), make_policy(4)
    before = greedy_s(policy, problem)
    paper = {"batch_episodes": 1, "exploration": 0.2, "advantage": "running_mean", "entropy": 0.0}
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            session,
            policy=policy,
            **{**paper, "evaluations": 700, "try_every": 20, "learning_rate": [2e-3, 1e-3]},
        )
        fit(module, tmp_path)
    assert greedy_s(policy, problem) < before
    assert module.problem.history.count == module.num_episodes == 665


@pytest.mark.parametrize("confirmations", [0, 1, 5])
def test_under_jitter_the_best_is_told_by_executions_of_its_own(tmp_path, confirmations):
    problem, told = two_chains(), []
    with WorkConserving(noise=0.2).open(problem) as session:
        module = reinforcement(
            session,
            confirmations=confirmations,
            evaluations=300,
            on_best=lambda placement, seconds: told.append((placement, seconds)),
        )
        fit(module, tmp_path)
        module.try_greedy()
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
    measured = []
    # Without exploration and without learning all episodes are the same.
    still = {"exploration": 0.0, "learning_rate": [0.0, 0.0]}
    with WorkConserving(noise=0.2).open(two_chains()) as session:
        module = reinforcement(session, confirmations=2, evaluations=100, **still)
        execute = module.problem.evaluator.measure

        def executed(device_BV, *rest):
            assert (device_BV == device_BV[0]).all()
            measurement = execute(device_BV, *rest)
            measured.append(measurement.cost_s().tolist())
            return measurement

        module.problem.evaluator.measure = executed
        fit(module, tmp_path)
    assert all(batch == batch[:1] * 16 for batch in measured)
    assert len({batch[0] for batch in measured}) == len(measured) == module.num_updates


# --- The loss and the optimiser -------------------------------------------------------------------


def test_the_network_has_a_share_of_the_rate_and_all_else_the_whole(tmp_path):
    policy = make_policy(0)
    with WorkConserving().open(two_chains()) as session:
        module = reinforcement(session, policy=policy, network_rate=0.2)
    rate_of = {
        id(parameter): group["lr"]
        for group in module.configure_optimizers()["optimizer"].param_groups
        for parameter in group["params"]
    }
    rates = {name: rate_of[id(parameter)] for name, parameter in policy.named_parameters()}
    network = {name for name in rates if name.startswith("network.")}
    assert len(network) > 5 and len(network) < len(rates)
    assert {rates[name] for name in network} == {0.2 * 1e-2}
    assert {rates[name] for name in rates.keys() - network} == {1e-2}


def test_names_of_a_network_are_those_of_parameters():
    for file in (REPOSITORY / "conf/policy").glob("*.yaml"):
        policy = instantiate(OmegaConf.load(file).build)
        names = [name for name, _ in policy.named_parameters()]
        for prefix in getattr(policy, "network_prefixes", ()):
            assert any(name.startswith(prefix) for name in names), (file.stem, prefix)


@pytest.mark.parametrize("remaining", [1.0, 0.25])
def test_entropy_is_rewarded_less_and_less(monkeypatch, remaining):
    """The loss is linear in the weight of the entropy, which falls with what remains."""
    monkeypatch.setattr(Reinforcement, "remaining", remaining)

    def loss(entropy: float) -> float:
        with WorkConserving().open(two_chains()) as session:
            module = reinforcement(session, entropy=entropy)
            return module.loss(module.problem).item()

    by_half, by_one = loss(0.0) - loss(0.5), loss(0.0) - loss(1.0)
    assert by_one == pytest.approx(2.0 * by_half, rel=1e-4)
    per_op = by_one / remaining
    assert 0.1 < per_op < np.log(9 * 2), "of at most nine ops and two devices"


def test_costs_are_judged_by_those_before_them(monkeypatch):
    calls = []

    def noted(cost_B, shortfall_B, past):
        calls.append((cost_B, shortfall_B, past))
        return np.zeros_like(cost_B)

    monkeypatch.setitem(ADVANTAGES, "running_mean", noted)
    two_fit = build(
        graph_of([1.0] * 4, output_bytes=[1.0] * 4), cluster_of([1.0] * 2, memory_bytes=[2.0, 9.0])
    )
    with WorkConserving().open(two_fit) as session:
        module = reinforcement(session, advantage="running_mean")
        for _ in range(2):
            module.loss(module.problem)
    (first_B, shortfall_B, none), (second_B, _, past) = calls
    assert none == NO_HISTORY
    assert past == NO_HISTORY.with_batch(first_B)
    assert module.problem.history == past.with_batch(second_B)
    assert np.isinf(first_B).any() and np.isfinite(first_B).any()
    np.testing.assert_array_equal(np.isinf(first_B), shortfall_B > 0.0)


def test_each_step_is_as_likely_as_any_other_to_be_decided_anew(monkeypatch):
    problem, windows = random_problem(3, num_ops=12, num_devices=2), []
    policy = make_policy(0)
    play = policy.return_to

    def noted(view, op_V, device_V, window_B2, rng):
        windows.append(window_B2)
        return play(view, op_V, device_V, window_B2, rng)

    monkeypatch.setattr(policy, "return_to", noted)
    monkeypatch.setattr(Reinforcement, "remaining", 0.0)
    with WorkConserving().open(problem) as session:
        module = reinforcement(
            session, policy=policy, evaluations=5000, batch_episodes=2000, returning_share=0.9
        )
        module.try_greedy()
        module._return_to_best(module.problem, module.problem.view)
    first_B, end_B = np.concatenate(windows).T
    assert ((first_B >= 0) & (first_B < end_B) & (end_B <= 12)).all()
    steps = np.arange(12)
    covered = ((first_B[:, None] <= steps) & (steps < end_B[:, None])).sum(axis=0)
    assert covered.max() < 1.25 * covered.min()
    assert {1, 11} <= set((end_B - first_B).tolist())
