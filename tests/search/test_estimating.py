"""Search on estimates: what it executes, counts and finds."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from plain_schedule import with_arrays, with_less_memory
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.baselines import Clustering, QueuedETF
from doppler.env import make_view
from doppler.policies import DualPolicy
from doppler.precompile import _ToldSession
from doppler.problem import Placement, build, topological_priority
from doppler.search import AnnealOnEstimates, Budget, Episodes, Evaluator, estimating, search
from doppler.search.estimating import (
    as_executed,
    best_by_estimates,
    in_order,
    open_estimates_of,
    waits_longer,
)
from doppler.search.evaluator import NO_PLACEMENT, ScoredPlacement
from doppler.simulator import Published, WorkConserving, open_estimates
from doppler.support.errors import InputError

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")
LISTS = [Clustering(evaluations=1), QueuedETF(evaluations=1)]


@dataclass(frozen=True)
class Drawn:
    """Drafts that are placements at random."""

    name: ClassVar[str] = "drawn"

    def draw(self, problem, num, rng):
        drawn = [random_placement(problem, int(rng.integers(1000))) for _ in range(num)]
        return np.stack([one.device for one in drawn]), np.stack([one.priority for one in drawn])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def found_by(step, *, problem=PROBLEM, evaluations=8, seed=0, **system) -> Evaluator:
    with WorkConserving(**system).open(problem) as session:
        best = Evaluator(session=session, confirmations=2, seed=0)
        search([step], best, Budget(evaluations=evaluations), generator(seed))
        assert best.evaluations == session.evaluations <= evaluations
    return best


def test_what_is_executed_is_counted_and_estimates_are_not():
    assert found_by(AnnealOnEstimates(drafts=LISTS, steps=50)).evaluations == 8
    assert found_by(AnnealOnEstimates(drafts=LISTS, steps=50, at_most=3)).evaluations == 3
    assert found_by(AnnealOnEstimates(drafts=LISTS, steps=50), noise=0.1).evaluations == 8


def test_equal_seeds_find_equal_placements():
    step = AnnealOnEstimates(drafts=LISTS, steps=100)
    rows = [found_by(step, seed=seed).found.plain() for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]


def test_estimates_choose_among_drafts_and_annealing_makes_them_better():
    drawn = found_by(AnnealOnEstimates(drafts=[Drawn()], steps=0), evaluations=1)
    chosen = found_by(AnnealOnEstimates(drafts=[Drawn()] * 30, steps=0), evaluations=1)
    annealed = found_by(AnnealOnEstimates(drafts=[Drawn()], steps=3000), evaluations=1)
    assert annealed.seconds < chosen.seconds < drawn.seconds
    assert chosen.found.source == "drawn" and annealed.found.source == "drawn, estimates"


@pytest.mark.parametrize(("num_ops", "expected"), [(30, [4, 1, 1]), (8000, [2, 1, 1])])
def test_several_drafts_of_each_kind_are_drawn_before_anything_is_known(num_ops, expected):
    drawn: list[int] = []

    class Counted(Drawn):
        def draw(self, problem, num, rng):
            drawn.append(num)
            anywhere = rng.integers(0, problem.num_devices, (num, problem.num_ops))
            return anywhere, np.tile(topological_priority(problem), (num, 1))

    problem = random_problem(0, num_ops=num_ops, num_devices=2, costs="distinct")
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        AnnealOnEstimates(drafts=[Counted()], steps=2).search(best, 5, generator())
    assert drawn == expected


def test_every_other_turn_goes_on_from_the_best_so_far():
    best = found_by(AnnealOnEstimates(drafts=[Drawn()], steps=20), evaluations=40)
    once = found_by(AnnealOnEstimates(drafts=[Drawn()], steps=20), evaluations=1)
    assert best.seconds < once.seconds


def test_of_ops_ranked_as_executed_estimates_tell_what_the_execution_took():
    with Published(queue="priority").open(PROBLEM) as session:
        estimates = open_estimates_of(session)
        told, before = [], []
        for seed in range(20):
            found = ScoredPlacement(random_placement(PROBLEM, seed), 1.0, "drawn")
            ranked = as_executed(session, found)
            assert ranked.placement is not None and ranked.source == "drawn"
            assert np.array_equal(ranked.placement.device, found.placement.device)
            for one, to in ((found, before), (ranked, told)):
                row = in_order(PROBLEM, one)
                to.append(estimates.measure(row.device[None], row.priority[None]).seconds[0, 0])
            took = session.measure(found.placement.device[None], found.placement.priority[None])
            assert told[-1] == pytest.approx(took.seconds[0, 0], rel=1e-6)
        assert np.mean(before) > 1.1 * np.mean(told)
        assert as_executed(session, NO_PLACEMENT) == NO_PLACEMENT


def test_a_turn_that_goes_on_from_the_best_begins_with_it_as_executed():
    given = random_placement(PROBLEM, 3)
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        best.confirm(given)
        executed: list[np.ndarray] = []
        session.measure = _noted(session.measure, executed)
        AnnealOnEstimates(drafts=(), steps=1).search(best, 1, generator())  # a step: its start
        (priority_V,) = executed
        starts = session.trace(given).op_start_s[np.argsort(priority_V)]
    assert (np.diff(starts) >= 0).all()
    assert not np.array_equal(priority_V, in_order(PROBLEM, ScoredPlacement(given, 1.0)).priority)


def _noted(measure, executed):
    def measure_and_note(device_BV, priority_BV, **kwargs):
        executed.extend(priority_BV)
        return measure(device_BV, priority_BV, **kwargs)

    return measure_and_note


def test_a_plan_that_waits_where_the_system_does_not_is_no_better():
    # Op 2 is to come before op 0, which could start at once: of the plan 12 s, of its execution 21.
    works, edges = [10.0, 1.0, 1.0, 10.0], [(1, 2, 0.0), (2, 3, 0.0)]
    problem = build(graph_of(works, edges), cluster_of([1.0, 1.0, 10 / 13]))
    waits = ScoredPlacement(Placement.make(problem, [0, 1, 0, 1], [3, 0, 1, 2]), np.inf)
    runs = ScoredPlacement(Placement.make(problem, [2, 1, 0, 1], [3, 0, 1, 2]), np.inf)
    with WorkConserving().open(problem) as session, open_estimates_of(session) as estimates:
        for found, estimated, took in ((waits, 12.0, 21.0), (runs, 13.0, 13.0)):
            row = found.placement.device[None], found.placement.priority[None]
            assert estimates.measure(*row).seconds == estimated
            assert session.measure(*row).seconds == took
        executed = session.evaluations
        assert waits_longer(session, estimates, waits, runs)
        assert not waits_longer(session, estimates, runs, waits)
        assert session.evaluations == executed
    with WorkConserving(contention="none").open(problem) as session:  # it would be the execution
        assert not waits_longer(session, estimates, waits, runs)


def test_a_draft_is_executed_as_it_is_where_annealing_but_learns_to_wait(monkeypatch):
    for waits, source in ((True, "drawn"), (False, "drawn, estimates")):
        monkeypatch.setattr(estimating, "waits_longer", lambda *_, waits=waits: waits)
        assert found_by(AnnealOnEstimates(drafts=[Drawn()]), evaluations=1).found.source == source


def test_where_no_order_is_kept_drafts_are_executed_as_they_are():
    best = found_by(AnnealOnEstimates(drafts=[Drawn()], steps=50), queue="fifo")
    assert best.evaluations == 8 and best.found.source == "drawn"


def test_what_is_found_fits_in_memory():
    tight = with_less_memory(random_problem(7, num_ops=30, num_devices=3, given_costs=False), 0.5)
    best = found_by(AnnealOnEstimates(drafts=LISTS, steps=300), problem=tight, evaluations=16)
    assert np.isfinite(best.seconds)


def test_what_surely_fits_comes_before_what_is_faster_and_else_what_lacks_least():
    problem = random_problem(5, num_ops=40, num_devices=3)
    drawn = [random_placement(problem, seed) for seed in range(2)]
    placements = [(np.zeros((1, 40), np.int64), drawn[0].priority[None])]
    placements += [(one.device[None], one.priority[None]) for one in drawn]

    def estimated(room: float):
        return open_estimates(with_arrays(problem, memory_bytes=np.full(3, room)))

    with estimated(1.0) as estimates:
        found = estimates.measure(*map(np.concatenate, zip(*placements, strict=True)))
    used, seconds = found.peak_bytes.max(axis=1), found.seconds[:, 0]
    fastest, smallest = int(seconds.argmin()), int(used.argmin())
    assert fastest != smallest
    for room, expected in (
        (1e9, fastest),
        (used[fastest], fastest),
        (used[fastest] / 1.1, None),
        (used[smallest] / 4, smallest),
    ):
        with estimated(room) as estimates:
            chosen = best_by_estimates(estimates, placements)[1]
        assert chosen == expected or (expected is None and chosen != fastest)


def test_estimates_leave_a_part_of_the_memory_where_it_can_be_short():
    problem = random_problem(5, num_ops=40, num_devices=3, given_costs=False)
    for less, share in ((problem, 1.0), (with_less_memory(problem, 0.5), 0.95)):
        with WorkConserving().open(less) as session, open_estimates_of(session) as estimates:
            room_D = estimates.problem.arrays.memory_bytes
        assert room_D == pytest.approx(share * less.arrays.memory_bytes)


def test_where_executing_takes_real_time_annealing_takes_as_long(monkeypatch):
    class Clock:
        now_s = 0.0

        def perf_counter(self) -> float:
            return self.now_s

    given, clock, each_s = [], Clock(), PROBLEM.scale_s / 1024
    step = AnnealOnEstimates(drafts=[Drawn()], steps=40)

    def annealed(self, estimates, start, steps, rng, walks):
        given.append(steps)
        clock.now_s += each_s * steps
        return start

    monkeypatch.setattr(AnnealOnEstimates, "_annealed", annealed)
    monkeypatch.setattr("doppler.search.estimating.time", clock)
    with WorkConserving().open(PROBLEM) as session:
        told = _ToldSession(session)

        def measure(*args, **kwargs):
            measured = _ToldSession.measure(told, *args, **kwargs)
            clock.now_s += float(measured.seconds.sum())
            return measured

        told.measure = measure
        best = Evaluator(session=told, confirmations=0, seed=0)
        step.search(best, 1, generator())
        worth = int(best.seconds / each_s)
        step.search(best, 2, generator())
    assert given[:2] == [10, 10] and worth > 10, "a simulation takes four estimates"
    assert abs(given[2] - worth) <= 1
    given.clear()
    found_by(step)
    assert given == [20, 20, 40] * 4, "a draft in two parts, then the best in one"


def test_what_is_executed_for_real_is_simulated_first():
    """Of a system that executes what the simulator says, the best of a search there is found."""
    step = AnnealOnEstimates(drafts=[Drawn()], steps=4000)
    for queue in ("priority", "fifo", "strict"):
        with WorkConserving(queue=queue).open(PROBLEM) as session:
            told: Any = _ToldSession(session)
            told.honours_order = session.honours_order
            if queue == "strict":
                told.execution = session.execution
            best = Evaluator(session=told, confirmations=0, seed=0)
            with open_estimates_of(told) as cheaper:
                step.search(best, 1, generator())
                placement = best.placement
                rows = placement.device[None], placement.priority[None]
                assert cheaper.measure(*rows).cost_s() == best.seconds
            drafted = Evaluator(session=told, confirmations=0, seed=0)
            AnnealOnEstimates(drafts=[Drawn()], steps=0).search(drafted, 1, generator())
            assert best.seconds < drafted.seconds


def test_a_policys_episodes_are_drafts_as_they_are_and_merged():
    torch.manual_seed(0)
    policy = DualPolicy(sel_hidden=4, plc_hidden=4)
    view = make_view(PROBLEM)
    for merged in (False, True):
        drafts = Episodes(policy=policy, view=view, merged=merged)
        device_BV, priority_BV = drafts.draw(PROBLEM, 3, generator())
        assert device_BV.shape == priority_BV.shape == (3, 30)
        best = found_by(AnnealOnEstimates(drafts=[drafts], steps=5), evaluations=2)
        assert best.found.source == "episode, estimates"


@dataclass(frozen=True)
class Chosen:
    """What is chosen is a placement that takes little."""

    name: ClassVar[str] = "chosen"

    def chosen(self, search, estimates, rng) -> Placement:
        placement = found_by(AnnealOnEstimates(drafts=LISTS)).placement
        assert placement is not None
        return placement


def test_a_greedy_episode_is_drafted_in_place_of_others_until_something_was_executed():
    asked = []

    class Counting(DualPolicy):
        def rollout(self, *args):
            asked.append(args)
            return super().rollout(*args)

    policy = Counting(sel_hidden=4, plc_hidden=4)
    drafts = [Episodes(policy=policy, view=make_view(PROBLEM)), Drawn()]
    step = AnnealOnEstimates(drafts=drafts, greedy=Chosen(), steps=0)
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        step.search(best, 1, generator())
        assert best.found.source == "chosen" and not asked
        step.search(best, 1, generator())
        assert len(asked) == 1
        best.found = NO_PLACEMENT  # as if nothing fitted: it would be the same placement once more
        step.search(best, 1, generator())
        assert len(asked) == 2


def test_a_step_without_drafts_goes_on_from_the_best():
    for steps in (0, 500):
        with pytest.raises(InputError, match=r"^drafts: none are given, and there is no placement"):
            found_by(AnnealOnEstimates(drafts=[], steps=steps))
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        first = best.confirm(random_placement(PROBLEM, 0))
        AnnealOnEstimates(drafts=[], steps=500).search(best, 3, generator())
        assert best.seconds < first and best.evaluations == 4


def test_a_step_that_keeps_devices_searches_orders_alone():
    for queue in ("priority", "fifo"):
        with WorkConserving(queue=queue).open(PROBLEM) as session:
            told = _ToldSession(session)
            told.honours_order = session.honours_order
            best = Evaluator(session=told, confirmations=0, seed=0)
            start = random_placement(PROBLEM, 5)
            best.confirm(start)
            AnnealOnEstimates(drafts=[], steps=500, devices=False).search(best, 8, generator())
            assert best.placement is not None
            assert best.placement.device.tolist() == start.device.tolist()


def test_where_memory_is_short_what_cannot_run_is_estimated_to_take_forever():
    problem = with_less_memory(random_problem(3, num_ops=20, num_devices=3), 0.9)
    seconds = problem.arrays.op_seconds.copy()
    seconds[7, 0] = np.inf
    problem = with_arrays(problem, op_seconds=seconds)
    one = np.zeros((1, 20), np.int64)
    with open_estimates(problem) as estimates:
        found = estimates.measure(one, topological_priority(problem)[None])
    assert np.isinf(found.seconds).all()
    assert (found.peak_bytes == 0).all(), "no time, so nothing is held at any"
