"""How fast devices are, by the executions so far; and what a search makes of it."""

from dataclasses import replace

import numpy as np
from tests.problems import cluster_of, graph_of, random_problem

from doppler.baselines import Clustering, QueuedETF
from doppler.executor.pace import Pace
from doppler.problem import Placement, Problem, build
from doppler.search import AnnealEstimates, BestSoFar
from doppler.simulator import WorkConserving
from doppler.warming import _ToldSession


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
                best = BestSoFar(session=told, confirmations=0, seed=0)
                drafts = [Clustering(evaluations=1), QueuedETF(evaluations=1)]
                step = AnnealEstimates(drafts=drafts, steps=8000)
                step.search(best, 4, np.random.default_rng(seed))
                assert best.placement is not None
                assert best.placement.problem_hash == told.problem.hash
                check = Placement.make(true, best.placement.device, best.placement.priority)
                assert session.trace(check).makespan_s == best.seconds
            seconds.append(best.seconds)
        found[name] = np.exp(np.mean(np.log(seconds)))
    assert found["learning"] < 0.95 * found["believing"]
    assert found["learning"] < 1.05 * found["knowing"]
