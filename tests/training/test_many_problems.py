"""Stage II on many problems, of which one is a list of one."""

import math

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, random_problem
from trainings import LEARNING, NotedRollouts, fit, make_policy, task_of, weights_of

from doppler.baselines import lower_bound
from doppler.env import make_view, mergings
from doppler.problem import build
from doppler.search import Effort
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.training import (
    Reinforcement,
    ReinforcementOptions,
    TrainingProblem,
    effort_of,
    save_checkpoint,
)
from doppler.training.reinforcement import Score

TRAINED_ON, HELD_OUT = range(6), range(100, 108)
MANY = {
    **{"batch_problems": 2, "try_every": 25, "entropy": 0.003, "merged_share": 0.5},
    "learning_rate": [1e-2, 1e-3],
}


def small_policy():
    return make_policy(0)


def problem_of(seed: int):
    """14 to 30 ops on 2 to 4 devices."""
    return random_problem(seed, num_ops=14 + seed % 17, num_devices=2 + seed % 3, costs="distinct")


def tasks_of(seeds) -> list[TrainingProblem]:
    return [task_of(make_view(problem_of(seed))) for seed in seeds]


def make(num_updates: int, *, problems=None, trials=None, **changes) -> Reinforcement:
    arguments = {
        **{"policy": small_policy(), "seed": 0, "title": "test", "on_best": lambda: None},
        **{key: changes.pop(key) for key in ("on_best", "inherited", "policy") if key in changes},
    }
    return Reinforcement(
        problems=tasks_of(TRAINED_ON) if problems is None else problems,
        trials=tasks_of(HELD_OUT) if trials is None else trials,
        options=ReinforcementOptions(**{**LEARNING, **MANY, **changes}),
        num_updates=num_updates,
        **arguments,
    )


def greedy_ratios(policy) -> np.ndarray:
    """Greedy makespans of unseen problems over those of untrained weights."""
    seconds = []
    for one in (policy, small_policy()):
        rng = np.random.default_rng(0)
        seconds.append(
            [
                task.evaluator.session.measure(*one.rollout(task.view, 1, 0.0, rng).placements())
                .cost_s()
                .item()
                for task in tasks_of(range(200, 220))
            ]
        )
    return np.divide(*seconds)


def test_weights_trained_on_some_problems_are_better_on_others(tmp_path):
    scores = []
    module = make(75, on_best=lambda: scores.append(module.score))
    fit(module, tmp_path)
    module.try_greedy()
    assert greedy_ratios(module.policy).mean() < 0.9
    assert scores == sorted(set(scores), reverse=True)
    assert {score.infeasible for score in scores} == {0}
    ratios = [score.ratio for score in scores]
    assert 1.0 <= ratios[-1] < 0.95 * ratios[0], "makespans over lower bounds"
    assert module.effort.evaluations == 75 * 32 + (75 // 25 + 1) * len(HELD_OUT)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 20), (1.0, 40)])
def test_of_the_draws_a_share_places_groups(tmp_path, share, expected):
    rollouts = NotedRollouts(small_policy())
    module = make(20, policy=rollouts.policy, merged_share=share, try_every=100)
    fit(module, tmp_path)
    merged = [view.is_merged for view in rollouts.views_of(16)]
    assert len(merged) == 40
    assert abs(sum(merged) - expected) <= (12 if share == 0.5 else 0)
    assert bool(module.policy.plc_group.weight.any()) == (share > 0)


def test_as_many_problems_as_wanted_are_drawn_and_all_where_there_are_no_more(tmp_path):
    sizes = [task.view.problem.num_ops for task in tasks_of(TRAINED_ON)]
    assert len(set(sizes)) == len(sizes), "a problem is told by its size"
    for wanted, drawn in ((2, 2), (6, 6), (9, 6)):
        rollouts = NotedRollouts(small_policy())
        module = make(10, policy=rollouts.policy, batch_problems=wanted, try_every=100)
        fit(module, tmp_path)
        played = [view.problem.num_ops for view in rollouts.views_of(16)]
        updates = [played[i : i + drawn] for i in range(0, len(played), drawn)]
        assert len(updates) == 10 and module.batch_episodes == 16 * drawn
        if drawn < len(sizes):
            assert len({tuple(update) for update in updates}) > 5
            assert set(played) == set(sizes), "none is forgotten"
        else:
            assert updates == [sizes] * 10


def gradient(module: Reinforcement) -> torch.Tensor:
    """Of the first update."""
    module.zero_grad()
    module.training_step(0, 0).backward()
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in module.parameters()
        ]
    )


@pytest.mark.parametrize("advantage", ["batch", "running_mean"])
def test_an_update_of_many_problems_is_the_mean_of_the_updates_of_each(advantage):
    options = {
        "advantage": advantage,
        "extra_candidates": 2,
        "merged_share": 0.5,
    }
    whole = gradient(make(5, problems=tasks_of((0, 1, 2)), batch_problems=3, **options))
    rng, parts = make(5).rng, []
    for seed in (0, 1, 2):
        module = make(5, problems=tasks_of((seed,)), **options)
        module.rng = rng  # the draws of the whole, one problem after another
        parts.append(gradient(module))
    assert all(part.abs().max() > 1e-3 for part in parts)
    torch.testing.assert_close(whole, torch.stack(parts).mean(0), rtol=1e-4, atol=1e-6)


def test_each_problem_has_a_past_and_a_best_of_its_own(tmp_path):
    tasks = tasks_of((0, 1))
    module = make(
        5,
        problems=tasks,
        **{
            "advantage": "running_mean",
            "extra_candidates": 1,
            "tuned_updates": 2,
        },
    )
    fit(module, tmp_path)
    for task in tasks:
        assert task.history.count == 5 * 16
        assert task.evaluator.evaluations == 5 * 16 + 2 * 2
        assert task.evaluator.placement is not None
        assert task.evaluator.placement.problem_hash == task.view.problem.hash
        assert task.evaluator.seconds <= task.history.total_s / task.history.count
    assert module.best_s == float("inf"), "seconds of different problems do not compare"


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_what_trials_execute_and_what_was_inherited_counts(tmp_path, num_tasks):
    module = make(4, problems=tasks_of(range(num_tasks)), try_every=2, inherited=Effort(1000, 50.0))
    fit(module, tmp_path)
    trials = 2 * len(HELD_OUT)
    assert module.effort.evaluations == 1000 + 4 * 16 * min(2, num_tasks) + trials
    assert 50.0 < module.elapsed_s == module.effort.seconds < 1000.0


# --- Trials: which weights are the best -----------------------------------------------------------


def two_ops(memory_bytes: float) -> TrainingProblem:
    """Two ops of 1 s and 6 bytes on two devices."""
    graph = graph_of([1.0, 1.0], output_bytes=[6.0, 6.0])
    return task_of(make_view(build(graph, cluster_of([1.0, 1.0], memory_bytes=memory_bytes))))


class Fixed(torch.nn.Module):
    """A policy whose placements are given."""

    def __init__(self, device_V: list[int]) -> None:
        super().__init__()
        self.device_BV = np.array([device_V])

    def placements(self):
        return self.device_BV, np.array([[1, 0]])

    def rollout(self, view, num_episodes, explore, rng):
        assert (num_episodes, explore) == (1, 0.0)
        return self


def test_weights_that_fit_more_are_better_and_of_these_the_faster_ones():
    told = []
    trials = [two_ops(memory_bytes=memory) for memory in (100.0, 10.0)]
    module = make(1, problems=tasks_of((0, 1)), trials=trials)
    module.on_best = lambda: told.append(module.score)
    for device_V in ([0, 0], [0, 1], [0, 0], [1, 0]):
        module.policy = Fixed(device_V)
        module.try_greedy()
    bound_s = lower_bound(trials[0].view.problem).seconds
    assert bound_s == 1.0
    # Together, one of the trials has no room; the other takes twice its bound. Apart, both fit.
    assert told == [Score(1, pytest.approx(2.0)), Score(0, pytest.approx(1.0))]
    assert [task.greedy.seconds for task in trials] == [1.0, 1.0]


def test_the_first_weights_count_even_where_nothing_fits():
    told = []
    trial = two_ops(memory_bytes=10.0)
    module = make(1, problems=[trial], trials=[trial], on_best=lambda: told.append(module.score))
    module.policy = Fixed([0, 0])
    for _ in range(2):
        module.try_greedy()
    assert told == [Score(1, math.inf)]
    assert trial.greedy.placement is not None and trial.greedy.seconds == float("inf")


def test_trials_are_of_views_as_they_are_placed(tmp_path):
    views = [mergings(make_view(problem_of(seed)))[-1] for seed in HELD_OUT]
    rollouts = NotedRollouts(small_policy())
    module = make(1, policy=rollouts.policy, trials=[task_of(view) for view in views])
    module.try_greedy()
    assert [view for _, _, view in rollouts.noted] == views


# --- Interruptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_interrupted_training_goes_on_as_if_nothing_had_been(tmp_path, noise):
    def begin() -> Reinforcement:
        system = WorkConserving(noise=noise)

        def tasks(seeds) -> list[TrainingProblem]:
            views = [make_view(problem_of(seed)) for seed in seeds]
            return [task_of(view, system.open(view.problem)) for view in views]

        return make(
            40,
            problems=tasks(TRAINED_ON),
            trials=tasks(HELD_OUT),
            **{
                "advantage": "running_mean",
                "extra_candidates": 1,
                "exploration": 0.1,
            },
            **{"inherited": Effort(7, 1.0), "tuned_updates": 30},
        )

    whole, resumed, path = begin(), begin(), tmp_path / "last.ckpt"
    fit(whole, tmp_path)
    save_checkpoint(fit(begin(), tmp_path, steps=17), path)
    assert effort_of(path).evaluations < whole.effort.evaluations
    fit(resumed, tmp_path, from_checkpoint=path)
    assert torch.equal(weights_of(whole), weights_of(resumed))
    assert whole.score == resumed.score is not None
    assert whole.effort.evaluations == resumed.effort.evaluations
    for key in ("problems", "trials"):
        states = [[task.state() for task in getattr(one, key)] for one in (whole, resumed)]
        assert states[0] == states[1], key
    assert whole.rng.bit_generator.state == resumed.rng.bit_generator.state


# --- What is refused ------------------------------------------------------------------------------


def test_numbers_that_make_no_sense_are_named():
    with pytest.raises(InputError, match=r"^updates: must be a whole number of at least 0, got -1"):
        make(-1)


@pytest.mark.parametrize("key", ["problems", "trials"])
def test_there_must_be_problems(key):
    with pytest.raises(InputError, match="at least one problem each"):
        make(10, **{key: []})
