"""Methods that draw placements and execute each once; list schedulers belong to them.

Shape suffixes: B runs, V ops.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.contract import SearchResult
from doppler.baselines.hosts import num_ways, using_hosts
from doppler.problem import Placement, Problem
from doppler.support.options import Count
from doppler.system import Session

# Placements in a batch: few enough for large graphs to fit in memory, and even because runs
# alternate in how they treat memory (list_scheduling).
_BATCH = 64
# Largest number of ops for list schedulers that look at all gaps of a device or at all ready ops.
# On some larger graphs one run takes minutes.
MOST_OPS = 100_000


class ListDecisions(NamedTuple):
    """Runs of a list scheduler step by step.

    Attributes:
        op: [B, V] the op of each step.
        device: [B, V] its device.
        start: [B, V] its start, seconds.
    """

    op: NDArray[np.int64]
    device: NDArray[np.int64]
    start: NDArray[np.float64]

    def placements(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return placements_of_steps(self.op, self.device)


def placements_of_steps(
    op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return device and priority of each op, [B, V] each; the priority is the number of its step.

    Args:
        op_BV: the op of each step.
        device_BV: its device.
    """
    step_BV = np.broadcast_to(np.arange(op_BV.shape[1]), op_BV.shape)
    device_of_BV, priority_BV = np.empty_like(device_BV), np.empty_like(op_BV)
    np.put_along_axis(device_of_BV, op_BV, device_BV, axis=1)
    np.put_along_axis(priority_BV, op_BV, step_BV, axis=1)
    return device_of_BV, priority_BV


def make_decisions(num: int, problem: Problem) -> ListDecisions:
    """Allocate decisions for ``num`` runs."""
    shape = (num, problem.num_ops)
    return ListDecisions(np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape))


def in_order_of_start(decisions: ListDecisions) -> ListDecisions:
    """Sort each run by start; ops that start together keep their order.

    No op comes before its producers, because it was decided later and does not start earlier.
    """
    order_BV = np.argsort(decisions.start, axis=1, kind="stable")
    return ListDecisions(
        op=np.take_along_axis(decisions.op, order_BV, axis=1),
        device=np.take_along_axis(decisions.device, order_BV, axis=1),
        start=np.take_along_axis(decisions.start, order_BV, axis=1),
    )


def execute_best(
    session: Session,
    device_BV: NDArray[np.int64],
    priority_BV: NDArray[np.int64],
    rng: np.random.Generator,
) -> SearchResult:
    """Execute every placement once and return the best."""
    cost_B = session.measure(device_BV, priority_BV, rng=rng).cost_s()
    best = int(cost_B.argmin())
    return SearchResult(
        placement=Placement.make(session.problem, device_BV[best], priority_BV[best]),
        makespan_s=float(cost_B[best]),
        evaluations=len(cost_B),
    )


@dataclass(frozen=True, kw_only=True)
class BestOfRuns(ABC):
    """Draw placements, execute each once, and keep the best.

    Attributes:
        evaluations: number of placements.
    """

    evaluations: Count
    name: ClassVar[str]
    uses_order: ClassVar[bool] = True
    needs_order: ClassVar[bool] = False

    @classmethod
    def once(cls) -> Self:
        """Make the method with one evaluation."""
        return cls(evaluations=1)

    @abstractmethod
    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw devices and priorities of ``num`` placements, [B, V] each."""

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        best = None
        for done in range(0, self.evaluations, _BATCH):
            num = min(_BATCH, self.evaluations - done)
            found = execute_best(session, *self.draw(session.problem, num, rng), rng)
            if best is None or found.makespan_s < best.makespan_s:
                best = found
        assert best is not None
        return replace(best, evaluations=self.evaluations)


class ListScheduler(BestOfRuns):
    """Runs of a list scheduler with ties broken at random; the order of decisions is the priority.

    On several hosts runs also differ in the hosts that ops are confined to (hosts.py); the first
    run has no such limit.
    """

    @abstractmethod
    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        """Make ``num`` schedules of the method, with ops in the order of priority."""

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        device_BV, priority_BV = np.empty((2, num, problem.num_ops), np.int64)
        ways = min(num, num_ways(problem))
        for way in range(ways):
            rows = slice(way, num, ways)
            found = self.schedule(using_hosts(problem, way), len(range(num)[rows]), rng)
            device_BV[rows], priority_BV[rows] = found.placements()
        return device_BV, priority_BV

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        decisions = self.schedule(problem, num_episodes, rng)
        return decisions.op, decisions.device
