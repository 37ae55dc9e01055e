"""The methods that look at nothing: random, one device, round robin."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import BestOfRuns, execute_best
from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_level_priority
from doppler.graph.levels import topological_order
from doppler.options import checked
from doppler.problem import Problem
from doppler.system import Session


def random_devices(problem: Problem, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent uniform devices [num, V] among those that can run each op."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    draw_BVD = rng.random((num, problem.num_ops, problem.num_devices))
    return np.where(able_VD, draw_BVD, -1.0).argmax(axis=2)


@checked
@dataclass(frozen=True, kw_only=True)
class Random(BestOfRuns):
    """The best of uniformly random placements, ops in order of b_level."""

    name: ClassVar[str] = "random"
    uses_order: ClassVar[bool] = False

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See BestOfRuns."""
        return random_devices(problem, num, rng), np.tile(b_level_priority(problem), (num, 1))


@dataclass(frozen=True, kw_only=True)
class SingleDevice:
    """Every op on the one device on which the sum of all ops is least.

    An op that this device cannot run goes to the device that runs it fastest.
    """

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """See contract.Baseline."""
        problem = session.problem
        seconds_VD = problem.arrays.op_seconds
        able_D = np.isfinite(seconds_VD).sum(axis=0)
        total_D = np.where(np.isfinite(seconds_VD), seconds_VD, 0.0).sum(axis=0)
        best = np.lexsort((total_D, -able_D))[0]
        device_V = np.where(np.isfinite(seconds_VD[:, best]), best, seconds_VD.argmin(axis=1))
        return execute_best(session, device_V[None], b_level_priority(problem)[None], rng)


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """Ops in topological order go to the devices in turn; who cannot run one is passed over."""

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """See contract.Baseline."""
        problem = session.problem
        edges, num_devices = problem.graph.edges, problem.num_devices
        able_VD = np.isfinite(problem.arrays.op_seconds)
        device_V = np.empty(problem.num_ops, dtype=np.int64)
        turn = 0
        for v in topological_order(problem.num_ops, edges.src, edges.dst):
            while not able_VD[v, turn % num_devices]:
                turn += 1
            device_V[v] = turn % num_devices
            turn += 1
        return execute_best(session, device_V[None], b_level_priority(problem)[None], rng)
