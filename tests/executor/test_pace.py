"""How fast devices are, by the executions so far; and what a search makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from tests.problems import cluster_of, graph_of, random_placement, random_problem

from doppler.baselines import Clustering, QueuedETF
from doppler.cluster import SharedResource, preset
from doppler.executor.pace import Pace
from doppler.graph import synthetic
from doppler.precompile import _ToldSession
from doppler.problem import Placement, Problem, build
from doppler.search import AnnealFromBest, AnnealOnEstimates, Evaluator
from doppler.search.exchanging import exchanges
from doppler.simulator import WorkConserving


def slowed(problem: Problem, factor_D) -> Problem:
    """What is true where a problem's devices are so much slower than it says."""
    seconds_VD = problem.arrays.op_seconds * np.array(factor_D)
    return replace(problem, arrays=problem.arrays._replace(op_seconds=seconds_VD))


def test_of_executions_the_median_counts_and_the_unseen_are_worth_a_try():
    problem = build(graph_of([10, 30, 20], []), cluster_of([10.0] * 4))  # 1, 3 and 2 s
    pace = Pace(problem)
    assert pace.applied() is problem
    pace.note(np.array([0, 0, 1]), np.array([2.0, 6.0, 2.0]))  # 8 of 4 s, 2 of 2
    pace.note(np.array([0, 0, 1]), np.array([50.0, 50.0, 2.0]))  # disturbed
    pace.note(np.array([0, 0, 2]), np.array([3.0, 5.0, 8.0]))  # 8 of 4 s, 8 of 2
    ratio_D = pace.applied().arrays.op_seconds[0] / problem.arrays.op_seconds[0]
    np.testing.assert_allclose(ratio_D, [2.0, 1.0, 4.0, 1.0])
    fast = Pace(problem)
    fast.note(np.array([0, 0, 0]), np.array([0.5, 1.5, 1.0]))
    ratio_D = fast.applied().arrays.op_seconds[0] / problem.arrays.op_seconds[0]
    np.testing.assert_allclose(ratio_D, 0.5)
    assert pace.applied().graph is problem.graph


def test_what_devices_share_is_not_counted_twice():
    shared = (
        SharedResource(name="processors", devices=(0, 1)),
        SharedResource(name="memory", bytes_per_s=5e9, devices=(0, 1), links=((0, 1), (1, 0))),
    )
    problem = build(graph_of([10, 30, 20, 20], [(0, 1, 8.0)]), cluster_of([10.0] * 3))
    problem = build(problem.graph, replace(problem.cluster, shared=shared))
    placement = Placement.make(problem, np.array([0, 1, 0, 1]))
    simulator, pace = WorkConserving(contention="shared"), Pace(problem)
    with simulator.open(problem) as session:
        trace = session.trace(placement)
    taken_V = trace.op_finish_s - trace.op_start_s
    assert (taken_V > 1.2 * problem.arrays.op_seconds[:, 0]).any(), "they wait for each other"
    pace.note(placement.device, taken_V)
    pace.note(np.full(4, 2), 3 * problem.arrays.op_seconds[:, 2])
    with simulator.open(pace.applied()) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
    assert measured.seconds[0, 0] == pytest.approx(trace.makespan_s)
    ratio_D = pace.applied().arrays.op_seconds[0] / problem.arrays.op_seconds[0]
    np.testing.assert_allclose(ratio_D, [1.0, 1.0, 3.0])


class SlowedSession(_ToldSession):
    """Executes on what is true, is asked about what is believed, and notes what ops took."""

    def __init__(self, session, believed: Problem) -> None:
        super().__init__(session)
        self.problem, self._true, self._pace = believed, session.problem, Pace(believed)

    def measure(self, device_BV, priority_BV=None, repeats=1, rng=None):
        for device_V in device_BV:
            seconds_V = self._true.arrays.op_seconds[np.arange(len(device_V)), device_V]
            self._pace.note(device_V, seconds_V)
        return super().measure(device_BV, priority_BV, repeats, rng)

    def as_executed(self) -> Problem:
        return self._pace.applied()


def test_a_search_learns_from_its_executions_which_devices_are_slow():
    found = {}
    for name in ("knowing", "learning", "believing"):
        seconds = []
        for seed in range(4):
            believed = random_problem(seed, num_ops=40, num_devices=4, costs="distinct")
            true = slowed(believed, [1.0, 1.0, 3.0, 3.0])
            with WorkConserving().open(true) as session:
                told = SlowedSession(session, true if name == "knowing" else believed)
                if name == "believing":
                    told.as_executed = lambda problem=believed: problem
                best = Evaluator(session=told, confirmations=0, seed=0)
                drafts = [Clustering(evaluations=1), QueuedETF(evaluations=1)]
                step = AnnealOnEstimates(drafts=drafts, steps=8000)
                step.search(best, 4, np.random.default_rng(seed))
                assert best.placement is not None
                assert best.placement.problem_hash == told.problem.hash
                check = Placement.make(true, best.placement.device, best.placement.priority)
                assert session.trace(check).makespan_s == best.seconds
            seconds.append(best.seconds)
        found[name] = np.exp(np.mean(np.log(seconds)))
    assert found["learning"] < 0.95 * found["believing"]
    assert found["learning"] < 1.05 * found["knowing"]


def test_what_is_on_a_slow_host_is_tried_on_another():
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=0)
    believed = build(graph, preset(name="dgx_h100x16", num_devices=4, hosts=2))
    device_V = np.arange(40) % 2
    with WorkConserving().open(slowed(believed, [3.0, 3.0, 1.0, 1.0])) as session:
        best = Evaluator(session=SlowedSession(session, believed), confirmations=0, seed=0)
        first = best.confirm(Placement.make(believed, device_V))
        AnnealFromBest(hot=0.02, cold=1e-4).search(best, 1, np.random.default_rng(0))
        assert best.seconds < 0.5 * first
        assert best.placement is not None and best.placement.device.min() == 2


@pytest.mark.parametrize("notes_times", [True, False])
def test_annealing_is_simulated_where_a_real_system_notes_what_ops_take(notes_times):
    problem = random_problem(3, num_ops=30, num_devices=4, costs="distinct")
    found = {}
    with WorkConserving().open(problem) as session:
        told = SlowedSession(session, problem) if notes_times else _ToldSession(session)
        for name, one in (("real", told), ("simulated", session)):
            best = Evaluator(session=one, confirmations=0, seed=0)
            best.confirm(random_placement(problem, 0))
            AnnealFromBest(hot=0.02, cold=1e-4).search(best, 8, np.random.default_rng(0))
            assert best.evaluations == 9
            found[name] = best.seconds
    if notes_times:
        assert found["real"] < 0.8 * found["simulated"], "8 searches, or 8 steps"
    else:
        assert found["real"] > 0.8 * found["simulated"], "8 steps, as a simulator's"


def test_the_last_executions_that_confirm_one_placement_are_used():
    problem = random_problem(3, num_ops=30, num_devices=4, costs="distinct")
    with WorkConserving(noise=0.01).open(problem) as session:
        for executions, used in ((3, 0), (4, 4), (7, 4), (8, 8)):
            told = SlowedSession(session, problem)
            best = Evaluator(session=told, confirmations=4, seed=0)
            first = best.confirm(random_placement(problem, 0))
            AnnealFromBest(hot=0.02, cold=1e-4).search(best, executions, np.random.default_rng(0))
            assert best.evaluations == 4 + used
            assert (best.seconds < first) == (used > 0)


def test_exchanges_are_of_hosts_and_devices_and_as_many_as_asked_for():
    cluster = preset(name="dgx_h100x16", num_devices=4, hosts=2)
    rng = np.random.default_rng(0)
    found = exchanges(cluster, 100, rng)
    assert found[:3].tolist() == [[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 2, 3]]
    assert len(np.unique(found, axis=0)) == len(found) == 1 + 1 + 6
    assert (np.sort(found, axis=1) == np.arange(4)).all()
    assert len(exchanges(cluster, 3, rng)) == 3 and len(exchanges(cluster, 1, rng)) == 1
