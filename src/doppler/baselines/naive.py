"""Methods that ignore the graph: random, one device, round robin."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import BestOfRuns, execute_best
from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_level_priority
from doppler.graph.levels import topological_order
from doppler.problem import Problem
from doppler.support.options import checked
from doppler.system import Session


def random_devices(problem: Problem, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw independent uniform devices [num, V] for each group, among those that can run it."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    draw_BVD = rng.random((num, problem.num_ops, problem.num_devices))
    device_BV = np.where(able_VD, draw_BVD, -1.0).argmax(axis=2)
    return device_BV[:, problem.arrays.group]


@checked
@dataclass(frozen=True, kw_only=True)
class Random(BestOfRuns):
    """The best of uniformly random placements, ops in order of b_level."""

    name: ClassVar[str] = "random"
    uses_order: ClassVar[bool] = False

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return random_devices(problem, num, rng), np.tile(b_level_priority(problem), (num, 1))


@dataclass(frozen=True, kw_only=True)
class SingleDevice:
    """Put every op on the device on which the sum of all ops is smallest and that has room.

    Ops that this device cannot run go, with their group, to the device that runs them fastest.
    Another device is tried only if the one before it has too little memory.
    """

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        problem = session.problem
        seconds_VD = problem.arrays.op_seconds
        able_D = np.isfinite(seconds_VD).sum(axis=0)
        total_D = np.where(np.isfinite(seconds_VD), seconds_VD, 0.0).sum(axis=0)
        fastest_V = problem.group_seconds.argmin(axis=1)
        priority_BV = b_level_priority(problem)[None]
        found: list[SearchResult] = []
        for d in np.lexsort((total_D, -able_D)):
            if found and able_D[d] < able_D.max():
                break
            device_V = np.where(np.isfinite(seconds_VD[:, d]), d, fastest_V)
            found.append(execute_best(session, device_V[None], priority_BV, rng))
            if np.isfinite(found[-1].makespan_s):
                break
        used = sum(one.evaluations for one in found)
        return replace(min(found, key=lambda one: one.makespan_s), evaluations=used)


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """Deal groups to the devices in turn, in topological order of their first ops.

    Devices that cannot run a group are skipped. An op without a group is its own group.
    """

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        problem = session.problem
        edges, num_devices = problem.graph.edges, problem.num_devices
        able_VD, group_V = np.isfinite(problem.arrays.op_seconds), problem.arrays.group
        device_V = np.full(problem.num_ops, -1)
        turn = 0
        for v in topological_order(problem.num_ops, edges.src, edges.dst):
            if device_V[group_V[v]] >= 0:
                continue
            while not able_VD[v, turn % num_devices]:
                turn += 1
            device_V[group_V[v]] = turn % num_devices
            turn += 1
        device_V = device_V[group_V]
        return execute_best(session, device_V[None], b_level_priority(problem)[None], rng)
