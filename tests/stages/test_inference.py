"""Samples and polishing: within their budget, counted, and of use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import random_placement, random_problem

from doppler.baselines import Annealing
from doppler.episode import Merging, estimated_makespans, make_view
from doppler.errors import InputError
from doppler.policies import DualPolicy
from doppler.simulator import WorkConserving
from doppler.stages.best_so_far import BestSoFar
from doppler.stages.inference import Inference, Sampling, place_at_once, sample

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")


def make_policy(seed: int = 0) -> DualPolicy:
    torch.manual_seed(seed)
    sizes = {"hidden": 4, "rounds": 1, "sel_hidden": 4, "plc_hidden": 4}
    return DualPolicy(encoder="gated", sel="learned", plc="learned", look_ahead=True, **sizes)


def anneal(**arguments) -> Annealing:
    return Annealing(starts=1, hot=0.02, cold=0.0005, **arguments)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def best_of(session, **arguments) -> BestSoFar:
    settings = {"confirmations": 0, "seed": 0, "on_best": lambda placement, seconds: None}
    return BestSoFar(session=session, **{**settings, **arguments})


def make_inference(*, share: float = 0.5, **sampling) -> Inference:
    settings = Sampling(**{"samples": 0, "merged": 0, "drafts": 1, "rounds": 1, **sampling})
    return Inference(share=share, trained=settings, unseen=settings, anneal=anneal)


def search(inference: Inference, best: BestSoFar, evaluations: int) -> None:
    inference.search(
        make_policy(), make_view(PROBLEM), best, evaluations, order=True, rng=generator()
    )


@pytest.mark.parametrize("evaluations", [0, 1, 3, 8, 20, 100])
@pytest.mark.parametrize(("samples", "merged"), [(0, 0), (5, 0), (0, 5), (4, 6)])
@pytest.mark.parametrize(("noise", "confirmations"), [(0.0, 0), (0.1, 2)])
def test_no_more_is_executed_than_allowed_and_all_of_it_is_counted(
    evaluations, samples, merged, noise, confirmations
):
    inference = make_inference(samples=samples, merged=merged)
    with WorkConserving(noise=noise).open(PROBLEM) as session:
        best = best_of(session, confirmations=confirmations, evaluations=1000)
        search(inference, best, evaluations)
        assert best.evaluations - 1000 == session.evaluations <= evaluations
        assert evaluations - session.evaluations <= confirmations + max(1, confirmations)


def test_samples_and_merged_samples_are_executed_in_turn_and_polishing_ends_the_search():
    with WorkConserving().open(PROBLEM) as session:
        seconds = []
        for samples, merged, evaluations in ((8, 0, 8), (8, 40, 48), (8, 40, 400)):
            best = best_of(session)
            inference = make_inference(samples=samples, merged=merged)
            search(inference, best, evaluations)
            placement = best.placement
            again = session.measure(placement.device[None], placement.priority[None]).cost_s()
            assert again == best.seconds
            seconds.append(best.seconds)
    plain, both, polished = seconds
    assert plain > both > polished


def test_polishing_goes_on_from_the_best_and_never_ends_with_less():
    with WorkConserving().open(PROBLEM) as session:
        first = Annealing(evaluations=3000, order=True, starts=1, draws=1, hot=0.02, cold=0.0005)
        found = first.place(session, generator())
        best = best_of(session)
        best.offer(found.placement, found.makespan_s)
        polishing = make_inference(share=0.1)
        polishing.polish(best, 20, order=True, rng=generator())
        assert best.seconds <= found.makespan_s
        fresh = best_of(session)
        polishing.polish(fresh, 20, order=True, rng=generator())
        assert fresh.seconds > best.seconds, "where it begins makes no difference"


def test_without_order_polishing_leaves_priorities_alone():
    start = random_placement(PROBLEM, 0)
    polishing = make_inference(share=0.1)
    with WorkConserving().open(PROBLEM) as session:
        for order in (False, True):
            best = best_of(session)
            best.confirm(start)
            polishing.polish(best, 300, order=order, rng=generator())
            assert best.placement.device.tolist() != start.device.tolist()
            same = best.placement.priority.tolist() == start.priority.tolist()
            assert same == (not order)


def test_under_jitter_what_polishing_finds_is_confirmed_before_it_counts():
    with WorkConserving(noise=0.2).open(PROBLEM) as session:
        best = best_of(session, confirmations=3)
        search(make_inference(samples=4, merged=4), best, 300)
        assert best.placement is not None
        assert best_of(session, confirmations=3).confirm(best.placement) == best.seconds


def test_the_share_of_stage_two_is_rounded_down_and_must_be_a_number():
    inference = make_inference(share=0.2)
    assert [inference.evaluations_of(n) for n in (0, 4, 5, 999)] == [0, 0, 1, 199]
    with pytest.raises(InputError, match=r"^algorithm\.inference\.share: must be a number"):
        make_inference(share=-1)


@pytest.mark.parametrize("key", ["samples", "merged", "drafts", "rounds"])
@pytest.mark.parametrize("which", ["trained", "unseen"])
def test_numbers_of_samples_must_be_whole(which, key):
    good = Sampling(samples=0, merged=0, drafts=1, rounds=1)
    settings = {"trained": good, "unseen": good, which: replace(good, **{key: -1})}
    with pytest.raises(
        InputError, match=rf"^algorithm\.inference\.{which}\.{key}: must be a whole number"
    ):
        Inference(share=0.5, anneal=anneal, **settings)


# --- Drafts ---------------------------------------------------------------------------------------


def estimates(device_BV: np.ndarray, priority_BV: np.ndarray) -> np.ndarray:
    """Of placements whose priorities are the steps of their ops."""
    op_BV = np.argsort(priority_BV, axis=1)
    return estimated_makespans(PROBLEM, op_BV, np.take_along_axis(device_BV, op_BV, axis=1))


class Heard(BestSoFar):
    """Notes what is executed together, and what it costs."""

    def __init__(self, session) -> None:
        super().__init__(session=session, confirmations=0, seed=0, on_best=lambda *_: None)
        self.heard, self.costs = [], []

    def measure(self, device_BV, priority_BV, rng):
        measurement = super().measure(device_BV, priority_BV, rng)
        self.heard.append((device_BV, priority_BV))
        self.costs.append(measurement.cost_s().tolist())
        return measurement


def sampled(evaluations: int, **settings) -> Heard:
    with WorkConserving().open(PROBLEM) as session:
        best, sampling = Heard(session), Sampling(**{"rounds": 1, **settings})
        sample(make_policy(), make_view(PROBLEM), sampling, best, evaluations, generator())
        assert best.evaluations == session.evaluations
    return best


def executed(evaluations: int, **settings) -> tuple[np.ndarray, np.ndarray]:
    (together,) = sampled(evaluations, **settings).heard
    return together


@pytest.mark.parametrize("evaluations", [3, 20])
@pytest.mark.parametrize(("samples", "merged"), [(10, 0), (0, 10), (4, 6)])
def test_of_all_drafts_the_shortest_by_estimate_are_executed(samples, merged, evaluations):
    settings = {"samples": 4 * samples, "merged": 4 * merged}
    drafted = executed(evaluations, samples=samples, merged=merged, drafts=4)
    assert len(drafted[0]) == min(10, evaluations)
    every = executed(40, **settings, drafts=1)
    assert estimates(*drafted).max() < np.median(estimates(*every))
    if not merged:  # the drafts of a group sample are of one merged view, these are the same
        least = np.sort(estimates(*every))[: len(drafted[0])]
        np.testing.assert_array_equal(np.sort(estimates(*drafted)), least)


def test_at_once_is_the_greedy_episode_or_a_draft_that_is_shorter_by_estimate():
    view, gains = make_view(PROBLEM), []
    for seed in range(4):
        policy, seconds = make_policy(seed), []
        device_BV, priority_BV = policy.rollout(view, 1, 0.0, generator()).placements()
        for drafts in (1, 2, 32):
            first = place_at_once(policy, view, drafts, generator())
            seconds.append(estimates(first.device[None], first.priority[None])[0])
            if drafts == 1:
                np.testing.assert_array_equal(first.device, device_BV[0])
                np.testing.assert_array_equal(first.priority, priority_BV[0])
        assert max(seconds) == seconds[0] == estimates(device_BV, priority_BV)[0]
        gains.append(seconds[0] - min(seconds))
    assert max(gains) > 0


@pytest.mark.parametrize("evaluations", [3, 8])
def test_search_after_training_executes_samples_as_they_come(evaluations):
    found = []
    own = Sampling(samples=4, merged=4, drafts=1, rounds=1)
    for unseen in (own, Sampling(samples=2, merged=9, drafts=8, rounds=3)):
        inference = Inference(share=0.5, trained=own, unseen=unseen, anneal=anneal)
        with WorkConserving().open(PROBLEM) as session:
            best = Heard(session)
            search(inference, best, evaluations)
            found.append(best.heard[0])
    np.testing.assert_array_equal(*found)
    plain = make_policy().rollout(make_view(PROBLEM), 4, None, generator()).placements()
    np.testing.assert_array_equal(np.array(found[0])[:, :3], np.array(plain)[:, :3])


# --- Rounds ---------------------------------------------------------------------------------------


def costs_of_rounds(evaluations: int, drafts: int = 1) -> list[list[float]]:
    return sampled(evaluations, samples=4, merged=15, drafts=drafts, rounds=3).costs


@pytest.mark.parametrize(
    ("evaluations", "numbers"),
    [(3, [3]), (9, [9]), (11, [9, 2]), (16, [9, 5, 2]), (19, [9, 5, 5]), (40, [9, 5, 5])],
)
@pytest.mark.parametrize("drafts", [1, 3])
def test_rounds_share_what_may_be_executed(evaluations, numbers, drafts):
    assert [len(costs) for costs in costs_of_rounds(evaluations, drafts)] == numbers


def test_later_rounds_merge_much_as_the_best_so_far_did(monkeypatch):
    made, models = [], []
    at_random, near = Merging.at_random, Merging.near

    def noted_at_random(problem, rng):
        made.append(at_random(problem, rng))
        return made[-1]

    def noted_near(self, problem, rng):
        models.append(self)
        made.append(near(self, problem, rng))
        return made[-1]

    monkeypatch.setattr(Merging, "at_random", noted_at_random)
    monkeypatch.setattr(Merging, "near", noted_near)
    first, second, third = costs_of_rounds(100)
    of_groups = [*first[4:], *second, *third]
    assert len(made) == len(of_groups) == 15
    for done in (5, 10):
        ranked = np.argsort(of_groups[:done], kind="stable")[:3]
        assert models[done - 5 : done] == [made[ranked[j % 3]] for j in range(5)]
