"""The engine: within its budget, counted, each step from the best so far on."""

import itertools
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from plain_schedule import with_arrays, with_less_memory
from problems import random_placement, random_problem

from doppler.baselines import Annealing, Clustering
from doppler.cluster import preset
from doppler.env import make_view, merged_at_random, mergings, under_limit
from doppler.graph.synthetic import synthetic
from doppler.policies import DualPolicy
from doppler.problem import Placement, Problem, build, topological_priority
from doppler.search import (
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    Episodes,
    Evaluator,
    GreedyEpisode,
    InParts,
    PlaceAgain,
    search,
)
from doppler.search.estimating import Estimated, limit_of
from doppler.simulator import WorkConserving, open_estimates
from doppler.support.errors import InputError

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")
ANNEAL = AnnealFromBest(hot=0.02, cold=0.0005)
CLUSTER = PlaceAgain(make=Clustering)


def make_policy(seed: int = 0) -> DualPolicy:
    torch.manual_seed(seed)
    sizes = {"sel_hidden": 4, "plc_hidden": 4}
    return DualPolicy(**sizes)


def estimates(share: float | None = None) -> AnnealOnEstimates:
    drafts = [Episodes(policy=make_policy(), view=make_view(PROBLEM), merged=True)]
    return AnnealOnEstimates(drafts=drafts, steps=50, share=share)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def best_of(session, **arguments) -> Evaluator:
    return Evaluator(session=session, **{"confirmations": 0, "seed": 0, **arguments})


@dataclass
class Noting:
    """A step that notes what it is given, and executes random placements, ``uses`` or all."""

    share: float | None = None
    uses: int | None = None
    given: list = field(default_factory=list)
    repeats: ClassVar[bool] = True

    def search(self, best, evaluations, rng, *, walks=1):
        self.given.append((evaluations, best.placement, walks))
        num = evaluations if self.uses is None else min(evaluations, self.uses)
        for _ in range(num):
            best.confirm(random_placement(PROBLEM, int(rng.integers(1000))))


# --- A budget of evaluations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "total", "given"),
    [
        ([0.2, None], 50, [10, 40]),
        ([0.5, 0.3, 0.2], 30, [15, 9, 6]),
        ([0.19, None], 10, [1, 9]),
        ([None, None], 20, [20, 0]),
        ([0.25, 0.25], 20, [5, 5]),
    ],
)
def test_steps_get_their_shares_and_the_last_what_is_left(shares, total, given):
    steps = [Noting(share) for share in shares]
    with WorkConserving().open(PROBLEM) as session:
        best = best_of(session, evaluations=1000)
        effort = search(steps, best, Budget(evaluations=total), generator())
        assert [step.given[0][0] for step in steps] == given
        assert effort.evaluations == session.evaluations == best.evaluations - 1000 == sum(given)
    assert all(len(step.given) == 1 and step.given[0][2] == 1 for step in steps)


def test_what_a_step_leaves_is_for_the_next_ones():
    steps, ended = [Noting(0.5, uses=3), Noting()], []
    with WorkConserving().open(PROBLEM) as session:
        best = best_of(session)

        def after(step) -> None:
            ended.append((step, best.evaluations))

        search(steps, best, Budget(evaluations=20), generator(), after=after)
    assert ended == [(steps[0], 3), (steps[1], 20)]
    assert steps[0].given == [(10, None, 1)]
    evaluations, placement, _ = steps[1].given[0]
    assert evaluations == 17 and isinstance(placement, Placement)


@pytest.mark.parametrize("evaluations", [0, 1, 3, 8, 20, 100])
@pytest.mark.parametrize(("noise", "confirmations"), [(0.0, 0), (0.1, 2)])
def test_no_more_is_executed_than_allowed_and_all_of_it_is_counted(
    evaluations, noise, confirmations
):
    with WorkConserving(noise=noise).open(PROBLEM) as session:
        best = best_of(session, confirmations=confirmations, evaluations=1000)
        greedy = GreedyEpisode(policy=make_policy(), views=[make_view(PROBLEM)])
        cluster = replace(CLUSTER, share=0.3)
        steps = [greedy, estimates(0.3), cluster, ANNEAL]
        search(steps, best, Budget(evaluations=evaluations), generator())
        assert best.evaluations - 1000 == session.evaluations <= evaluations
        assert evaluations - session.evaluations <= confirmations + max(1, confirmations)


def test_confirmations_are_for_systems_whose_executions_differ():
    for noise, expected in ((0.0, 0), (0.1, 3)):
        with WorkConserving(noise=noise).open(PROBLEM) as session:
            assert best_of(session, confirmations=3).confirmations == expected


# --- Seconds --------------------------------------------------------------------------------------


def on_clock(monkeypatch, clock) -> None:
    """Searches read this clock."""
    for module in ("engine", "evaluator"):
        monkeypatch.setattr(f"doppler.search.{module}.time", clock)


@pytest.fixture
def slow(monkeypatch):
    """A clock that advances by a given time with every execution, and by nothing else."""

    class Clock:
        now_s, each_s = 0.0, 0.01

        def perf_counter(self) -> float:
            return self.now_s

    clock = Clock()
    on_clock(monkeypatch, clock)
    measure = Evaluator.confirm

    def confirm(self, placement):
        clock.now_s += clock.each_s
        return measure(self, placement)

    monkeypatch.setattr(Evaluator, "confirm", confirm)
    return clock


def test_within_seconds_steps_are_timed_and_repeated_with_what_is_left(slow):
    steps = [Noting(0.2), Noting()]
    with WorkConserving().open(PROBLEM) as session:
        effort = search(steps, best_of(session), Budget(seconds=100.0), generator())
    first, last = ([number for number, _, _ in step.given] for step in steps)
    assert first[:4] == [4, 32, 256, int((20 - 2.92) * 0.7 / 0.01)] and last[0] == 4
    assert 0.95 * 20 <= sum(first) * 0.01 <= 20
    assert 0.97 * 100 <= effort.seconds <= 100
    assert effort.evaluations == sum(first) + sum(last)


def test_a_slow_system_is_executed_as_often_as_the_first_turn_and_no_step_begins_too_late(slow):
    slow.each_s = 3.0
    steps = [Noting(0.2), Noting()]
    with WorkConserving().open(PROBLEM) as session:
        effort = search(steps, best_of(session), Budget(seconds=10.0), generator())
    assert [len(step.given) for step in steps] == [1, 0]
    assert effort.evaluations == 4


def test_no_turn_begins_that_has_no_time_for_one_execution(slow):
    slow.each_s = 10.0
    step = Noting(uses=8)
    with WorkConserving().open(PROBLEM) as session:
        effort = search([step], best_of(session), Budget(seconds=90.0), generator())
    assert len(step.given) == 3 and effort.seconds == 80


def test_no_step_begins_that_would_take_longer_than_there_is_left(slow):
    slow.each_s = 1.0
    for left_s, begins in ((3.0, True), (1.5, False)):
        steps = [Noting(0.1), Noting()]
        with WorkConserving().open(PROBLEM) as session:
            search(steps, best_of(session), Budget(seconds=4.0 + left_s), generator())
        assert bool(steps[1].given) == begins


def test_parts_of_a_step_end_with_the_time_but_the_first(slow):
    slow.each_s = 6.0
    steps = [Noting(), Noting(), Noting()]
    with WorkConserving().open(PROBLEM) as session:
        best = best_of(session)
        search([InParts(steps=steps)], best, Budget(seconds=10.0), generator())
        assert [len(step.given) for step in steps] == [1, 0, 0]
        InParts(steps=steps).search(best, 6, generator())
    assert [len(step.given) for step in steps] == [2, 1, 1], "no search, no time"


def test_what_has_found_nothing_that_fits_goes_on_a_quarter_longer(slow):
    slow.each_s = 3.0
    for keep, times in ((True, [1, 0, 0]), (False, [1, 1, 0])):
        steps = [Noting(0.1), Noting(0.1), Noting(0.1)]
        with WorkConserving().open(PROBLEM) as session:
            best = best_of(session)
            if not keep:
                best._keep = lambda *found: None
            search(steps, best, Budget(seconds=17.0), generator())
        assert [len(step.given) for step in steps] == times


def test_a_step_that_finds_nothing_to_do_is_not_asked_for_ever():
    steps = [Noting(uses=0)]
    with WorkConserving().open(PROBLEM) as session:
        effort = search(steps, best_of(session), Budget(seconds=100.0), generator())
    assert len(steps[0].given) == 1 and effort.seconds < 50


class Ticking:
    """A clock that advances by a second whenever it is read."""

    def __init__(self) -> None:
        self.perf_counter = itertools.count().__next__


@pytest.mark.parametrize("step", [CLUSTER, InParts(steps=[CLUSTER, CLUSTER]), ANNEAL], ids=repr)
def test_within_seconds_what_may_find_more_is_taken_again_with_more(step, monkeypatch):
    on_clock(monkeypatch, Ticking())
    given, search_step = [], type(step).search

    def noted(self, best, evaluations, rng, **options):
        if self is step:
            given.append(evaluations)
        search_step(self, best, evaluations, rng, **options)

    monkeypatch.setattr(type(step), "search", noted)
    with WorkConserving().open(PROBLEM) as session:
        search([step], best_of(session), Budget(seconds=10.0), generator())
    assert len(given) > 1 and given[1] > given[0]


def test_within_seconds_annealing_walks_on_every_core_again_and_again(monkeypatch):
    on_clock(monkeypatch, Ticking())
    monkeypatch.setattr("doppler.search.engine.os.sched_getaffinity", lambda _: {0, 1, 2})
    made, place = [], Annealing.place
    monkeypatch.setattr(
        Annealing, "place", lambda self, *a, **k: (made.append(self), place(self, *a, **k))[1]
    )
    with WorkConserving().open(PROBLEM) as session:
        search([ANNEAL], best_of(session), Budget(seconds=10.0), generator())
        search([ANNEAL], best_of(session), Budget(evaluations=50), generator())
    assert len(made) > 3
    assert {one.starts for one in made[:-1]} == {3} and made[-1].starts == 1
    assert made[-1].evaluations == 50


# --- Budgets and shares ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "evaluations, seconds: give exactly one of them, got None and None"),
        ({"evaluations": 5, "seconds": 1.0}, "evaluations, seconds: give exactly one of them"),
        ({"evaluations": 1.5}, "evaluations: must be a whole number of at least 0, got 1.5"),
        ({"evaluations": -1}, "evaluations: must be a whole number of at least 0, got -1"),
        ({"seconds": 0}, "seconds: must be a number above 0, at most 1e9, got 0"),
        ({"seconds": float("inf")}, "seconds: must be a number above 0, at most 1e9, got inf"),
        ({"seconds": float("nan")}, "seconds: must be a number above 0, at most 1e9, got nan"),
    ],
)
def test_a_budget_is_one_number_that_makes_sense(arguments, line):
    with pytest.raises(InputError) as error:
        Budget(**arguments)
    assert str(error.value).startswith(line)


@pytest.mark.parametrize("shares", [[0.6, 0.5], [-0.1], [0.5, 0.5, 0.1, None]])
def test_shares_are_of_one_budget(shares):
    with WorkConserving().open(PROBLEM) as session, pytest.raises(InputError, match=r"^share: "):
        steps = [Noting(share) for share in shares]
        search(steps, best_of(session), Budget(evaluations=10), generator())
    assert not any(step.given for step in steps)


# --- Steps ----------------------------------------------------------------------------------------


def test_the_greedy_episode_is_executed_once_and_draws_nothing():
    policy, view = make_policy(), make_view(PROBLEM)
    device_BV, _ = policy.rollout(view, 1, 0.0, generator()).placements()
    for budget in (Budget(evaluations=50), Budget(seconds=0.2)):
        with WorkConserving().open(PROBLEM) as session:
            best = best_of(session)
            search([GreedyEpisode(policy=policy, views=[view])], best, budget, generator(5))
        assert best.evaluations == 1
        np.testing.assert_array_equal(best.placement.device, device_BV[0])


def test_of_several_views_the_greedy_episode_that_is_estimated_best_is_executed():
    policy, view = make_policy(), make_view(PROBLEM)
    views = [view, *(merged_at_random(view, generator(seed)) for seed in range(5))]
    played = [policy.rollout(seen, 1, 0.0, generator()).placements() for seen in views]
    with open_estimates(PROBLEM) as estimates, WorkConserving().open(PROBLEM) as session:
        cost = [estimates.measure(*one).cost_s()[0] for one in played]
        assert len(set(cost)) > 1
        best = best_of(session)
        GreedyEpisode(policy=policy, views=views).search(best, 1, generator())
        assert best.evaluations == session.evaluations == 1
    expected = played[int(np.argmin(cost))][0][0]
    np.testing.assert_array_equal(best.placement.device, expected)


def test_further_views_are_played_next_to_the_best_and_make_it_no_worse():
    policy, gained = make_policy(), 0
    for seed in range(6):
        problem = random_problem(seed, num_ops=30, num_devices=4, costs="distinct")
        views, found = mergings(make_view(problem)), []
        for played in (0, len(views) + 30, len(views) + 30):
            with open_estimates(problem) as session:
                best = best_of(session)
                step = GreedyEpisode(policy=policy, views=views, played=played)
                step.search(best, 1, generator())
                assert best.evaluations == session.evaluations == 1
            found.append(best.seconds)
        assert found[2] == found[1] <= found[0], "the same at every call"
        gained += found[1] < found[0]
    assert gained > 0


@pytest.mark.parametrize("contention", ["fifo", "engines", "none"])
@pytest.mark.parametrize("memory", [False, True])
def test_what_is_not_played_out_would_not_have_been_chosen(monkeypatch, contention, memory):
    policy, num_ended, num_found = make_policy(), 0, 0
    for seed in range(6):
        problem = random_problem(seed, num_ops=40, num_devices=3, identical_devices=seed % 2 == 0)
        if memory:  # some placements fit, some do not
            with WorkConserving().open(problem) as session:
                (peak_D,) = session.measure(np.zeros((1, 40), np.int64)).peak_bytes
            room = np.full(3, 0.85 * peak_D.max())
            problem = replace(problem, arrays=problem.arrays._replace(memory_bytes=room))
        found, ends = [], []
        for limited in (True, False):
            monkeypatch.setattr("doppler.search.greedy.enough_s", lambda _: 0.0)  # play them all
            if not limited:
                monkeypatch.setattr("doppler.search.greedy.limit_of", lambda *_: np.inf)
            with WorkConserving(contention=contention).open(problem) as session:
                best = best_of(session)
                step = GreedyEpisode.of(policy, make_view(problem))
                noted = NotedLimits(policy)
                replace(step, policy=noted).search(best, 1, generator())
            chosen = best.placement  # None where nothing fits
            found.append(chosen and (chosen.device.tolist(), chosen.priority.tolist()))
            ends.append(noted.num_limited)
            monkeypatch.undo()
        assert found[0] == found[1]
        num_found += found[0] is not None
        assert ends[1] == 0
        num_ended += ends[0]
    assert (num_ended > 10) == (contention != "none"), "estimates without waits are lower"
    assert num_found > 3


def memory_for_seconds(problem: Problem, share: float) -> Problem:
    """Less memory than the fastest placement of a policy needs."""
    with open_estimates(problem) as session:
        best = best_of(session)
        GreedyEpisode.of(make_policy(), make_view(problem)).search(best, 1, generator())
        found = best.placement
        (peak_D,) = session.measure(found.device[None], found.priority[None]).peak_bytes
    return with_arrays(problem, memory_bytes=np.full(len(peak_D), share * peak_D.max()))


def test_a_greedy_placement_fits_where_the_policy_would_prefer_one_that_does_not():
    policy, num_fit = make_policy(), 0
    for seed in range(8):
        drawn = random_problem(seed, num_ops=40, num_devices=4, costs="distinct", given_costs=False)
        plenty = with_less_memory(drawn, 0.99)  # so that peaks are told
        problem = memory_for_seconds(plenty, 0.9)
        with WorkConserving().open(problem) as session:
            best = best_of(session)
            GreedyEpisode.of(policy, make_view(problem)).search(best, 1, generator())
        num_fit += best.placement is not None
    assert num_fit >= 6


def test_where_groups_do_not_fit_they_are_placed_again_in_less_memory():
    graph = synthetic(family="layered", num_ops=3000, transfer_ratio=10.0, seed=507)
    with WorkConserving().open(build(graph, preset(name="v100x8"))) as session:
        best, plain = best_of(session), best_of(session)
        view = make_view(session.problem)
        GreedyEpisode.of(make_policy(), view).search(best, 1, generator())
        GreedyEpisode(policy=make_policy(), views=[view]).search(plain, 1, generator())
    assert best.seconds < plain.seconds < np.inf, "which fits as it is"


class NotedLimits:
    """A policy, of which the rollouts are counted, and those under a limit."""

    def __init__(self, policy: DualPolicy) -> None:
        self.policy, self.num_limited, self.num_played = policy, 0, 0

    def rollout(self, view, num_episodes, explore, rng):
        self.num_played += 1
        self.num_limited += view.arrays.limit_s < np.inf
        return self.policy.rollout(view, num_episodes, explore, rng)


def test_close_to_a_lower_bound_only_the_first_views_are_played():
    # On one device all placements take as long as the bound.
    problem = random_problem(0, num_ops=30, num_devices=1, costs="distinct")
    num_limited = {}
    for contention in ("fifo", "none"):
        noted = NotedLimits(make_policy())
        with WorkConserving(contention=contention).open(problem) as session:
            step = GreedyEpisode.of(make_policy(), make_view(problem))
            replace(step, policy=noted).search(best_of(session), 1, generator())
        num_limited[contention] = noted.num_limited, noted.num_played
    assert num_limited["fifo"] == (3, 4)
    assert num_limited["none"][1] > 10, "such estimates are compared with no limit"


def test_an_episode_that_is_late_ends_anywhere_and_takes_no_less_than_its_limit():
    policy, num_cut = make_policy(), 0
    for seed in range(8):
        problem = random_problem(seed, num_ops=40, num_devices=3, costs="distinct")
        view = merged_at_random(make_view(problem), generator(seed))
        whole = policy.rollout(view, 1, 0.0, generator())
        with open_estimates(problem) as session:
            took_s = session.measure(*whole.placements()).cost_s()[0]
            for share in (0.0, 0.3, 0.7, 0.99, 1.0, 1.1):
                limited = under_limit(view, share * took_s)
                played = policy.rollout(limited, 1, 0.0, generator())
                assert sorted(played.op[0].tolist()) == list(range(40))
                device_BV, _ = played.placements()
                assert problem.allows(device_BV).all()
                for members in (view.arrays.group == g for g in np.unique(view.arrays.group)):
                    assert len(np.unique(device_BV[0][members])) == 1
                its_s = session.measure(*played.placements()).cost_s()[0]
                is_same = (played.op == whole.op).all() and (played.device == whole.device).all()
                assert is_same or (share <= 1.0 and its_s >= share * took_s * (1 - 1e-9))
                num_cut += not is_same
    assert num_cut > 10


def test_where_estimates_are_simulations_nothing_is_cut_short():
    with WorkConserving().open(PROBLEM) as simulated, open_estimates(PROBLEM) as estimates:
        assert limit_of(estimates, Estimated(3.0, 3.0, 0.5)) == 3.0
        assert limit_of(estimates, Estimated(9.0, 3.0, 1.0)) == 9.0, "what fits may take longer"
        assert limit_of(simulated, Estimated(3.0, 3.0, 0.5)) == np.inf, "there ops overtake"


def test_annealing_goes_on_from_the_best_and_never_ends_with_less():
    with WorkConserving().open(PROBLEM) as session:
        good = best_of(session)
        search([ANNEAL], good, Budget(evaluations=3000), generator())
        before = good.seconds
        search([ANNEAL], good, Budget(evaluations=20), generator())
        assert good.seconds <= before
        fresh = best_of(session)
        search([ANNEAL], fresh, Budget(evaluations=20), generator())
        assert fresh.seconds > good.seconds, "where it begins makes no difference"


@pytest.mark.parametrize(("queue", "honoured"), [("fifo", False), ("priority", True)])
def test_without_order_annealing_leaves_priorities_alone(queue, honoured):
    start = random_placement(PROBLEM, 0)
    with WorkConserving(queue=queue).open(PROBLEM) as session:
        assert session.honours_order == honoured
        best = best_of(session)
        best.confirm(start)
        search([ANNEAL], best, Budget(evaluations=300), generator())
    assert best.placement.device.tolist() != start.device.tolist()
    assert (best.placement.priority.tolist() != start.priority.tolist()) == honoured


def test_under_jitter_what_is_found_is_confirmed_before_it_counts():
    with WorkConserving(noise=0.2).open(PROBLEM) as session:
        best = best_of(session, confirmations=3)
        steps = [replace(CLUSTER, share=0.2), estimates(0.2), ANNEAL]
        search(steps, best, Budget(evaluations=300), generator())
        assert best.placement is not None
        assert best_of(session, confirmations=3).confirm(best.placement) == best.seconds


class _Counting:
    """A step that always finds the same placement, and counts its turns."""

    share, repeats = None, True

    def __init__(self):
        self.turns = 0

    def search(self, best, evaluations, rng, *, walks=1):
        self.turns += 1
        problem = best.session.problem
        device = np.zeros((1, problem.num_ops), np.int64)
        best.measure(device, topological_priority(problem)[None], rng)


def test_within_seconds_the_bound_ends_a_search_and_evaluations_are_all_used():
    problem = random_problem(3)
    with WorkConserving().open(problem) as session:
        found = Evaluator(session=session, confirmations=0, seed=0)
        rng = np.random.default_rng(0)
        first = _Counting()
        search([first], found, Budget(evaluations=1), rng)
        for enough_s, ends in ((found.seconds, True), (0.5 * found.seconds, False)):
            anew = Evaluator(session=session, confirmations=0, seed=0)
            step, other = _Counting(), _Counting()
            search([step, other], anew, Budget(seconds=0.2), rng, enough_s=enough_s)
            assert (step.turns == 1) == ends
            if ends:
                assert other.turns == 0
