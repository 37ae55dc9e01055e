"""What is kept of the best so far, and that a checkpoint may hold it."""

import numpy as np
import pytest
import torch
from problems import random_placement, random_problem

from doppler.baselines import Clustering, CriticalPath
from doppler.search import (
    NO_PLACEMENT,
    AnnealFromBest,
    Evaluator,
    PlaceOnce,
    ScoredPlacement,
    confirmations_within,
)
from doppler.simulator import WorkConserving

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")


def is_plain(value) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in (int, float, str, type(None))


def test_a_checkpoint_that_executes_no_code_holds_it(tmp_path):
    rng = np.random.default_rng(0)
    with WorkConserving(noise=0.1).open(PROBLEM) as session:
        told = []
        best = Evaluator(
            session=session,
            confirmations=2,
            seed=1,
            on_best=lambda placement, seconds: told.append(seconds),
        )
        assert is_plain(best.state())
        best.add(Clustering(evaluations=10).place(session, rng))
        best.confirm(random_placement(PROBLEM, 0))
        assert best.evaluations == session.evaluations == 14
        assert told == [best.seconds]
        state = best.state()
        assert is_plain(state)
        torch.save({"best": state, "rng": rng.bit_generator.state}, tmp_path / "x.ckpt")
        loaded = torch.load(tmp_path / "x.ckpt", weights_only=True)
        assert loaded["rng"] == rng.bit_generator.state
        again = Evaluator(session=session, confirmations=2, seed=1)
        again.restore(loaded["best"])
        assert (again.evaluations, again.seconds) == (14, best.seconds)
        assert again.placement.device.tolist() == best.placement.device.tolist()
        assert again.placement.priority.tolist() == best.placement.priority.tolist()


def test_it_knows_what_found_the_best_placement_and_what_made_it_better():
    rng = np.random.default_rng(0)
    with WorkConserving(queue="priority").open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        placements = [random_placement(PROBLEM, seed) for seed in range(3)]
        device_BV, priority_BV = (
            np.stack([getattr(one, key) for one in placements]) for key in ("device", "priority")
        )
        seconds_B = best.measure(device_BV, priority_BV, rng, ["a", "b", "c"]).cost_s()
        assert best.found.source == "abc"[int(seconds_B.argmin())]
        worse = random_placement(PROBLEM, int(np.argmax(seconds_B)))
        best.confirm(worse, "worse")
        assert best.found.source in ("a", "b", "c")
        first = best.found.source
        anneal = AnnealFromBest(hot=0.1, cold=0.01)
        for _ in range(2):  # once more changes nothing of what it is called
            anneal.search(best, 300, rng)
            assert best.found.source == f"{first}, annealing"
        again = Evaluator(session=session, confirmations=0, seed=0)
        again.restore(best.state())
        assert again.found.source == best.found.source
        alone = Evaluator(session=session, confirmations=0, seed=0)
        anneal.search(alone, 20, rng)
        assert alone.found.source == "annealing"
        once = Evaluator(session=session, confirmations=0, seed=0)
        PlaceOnce(baseline=CriticalPath(evaluations=2)).search(once, 0, rng)
        assert once.found.source == "critical_path"


def test_what_was_found_for_another_problem_is_nothing():
    found = ScoredPlacement(random_placement(PROBLEM, 0), 1.0, "episode")
    again = ScoredPlacement.restored(found.plain(), PROBLEM)
    assert (again.seconds, again.source) == (1.0, "episode")
    other = random_problem(4, num_ops=30, num_devices=4)
    assert ScoredPlacement.restored(found.plain(), other) == NO_PLACEMENT


@pytest.mark.parametrize(
    ("evaluations", "expected"), [(1, 0), (2, 1), (3, 1), (8, 2), (16, 2), (32, 4), (1000, 4)]
)
def test_of_few_executions_more_are_of_other_placements(evaluations, expected):
    assert confirmations_within(evaluations, 4) == expected
    assert confirmations_within(evaluations, 1) == min(expected, 1)
    assert confirmations_within(evaluations, 0) == 0, "where executions never differ none confirms"
