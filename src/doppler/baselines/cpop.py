"""Critical path on a processor.

Shape suffixes: B runs, V ops, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import MOST_OPS, ListDecisions, ListScheduler, in_order_of_start
from doppler.baselines.levels import b_levels, t_levels
from doppler.baselines.list_scheduling import schedule_ops, tie_seconds
from doppler.problem import Problem
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class CPOP(ListScheduler):
    """Keep one critical path on its fastest device; other ops go where they end first.

    Candidates are taken by the length of the longest path through them (upward plus downward rank),
    the longest first. Ops go into gaps. Ties, also between several critical paths, are broken at
    random, and the best of ``evaluations`` runs counts. Priorities follow the starts in the
    schedule. If no device can run the whole path, the one that can run most of it is used, and the
    rest of the path is free.

    Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 2002; mean transfers as in heft.py.
    """

    name: ClassVar[str] = "cpop"
    most_ops: ClassVar[int] = MOST_OPS

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        upward_V, downward_V = b_levels(problem), t_levels(problem)
        critical = _critical_ops(problem, upward_V, downward_V)
        home_BV = np.full((num, problem.num_ops), -1)
        for home_V in home_BV:
            path = _draw_path(critical, rng)
            home_V[path] = _fastest_device(problem, path, rng)
        through_V = upward_V + downward_V
        return in_order_of_start(
            schedule_ops(problem, through_V, num, rng, insertion=True, home_BV=home_BV)
        )


def _critical_ops(
    problem: Problem, upward_V: NDArray[np.float64], downward_V: NDArray[np.float64]
) -> dict[int, list[int]]:
    """The first ops of longest paths (key -1), and the ops that can follow each op on them."""
    edges, length = problem.graph.edges, upward_V.max()
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    before_E = (downward_V + problem.mean_op_seconds)[edges.src] + transfer_E
    shortest = length - tie_seconds(upward_V)
    is_source_V = np.bincount(edges.dst, minlength=problem.num_ops) == 0
    following = {-1: np.flatnonzero(is_source_V & (upward_V >= shortest)).tolist()}
    for e in np.flatnonzero(before_E + upward_V[edges.dst] >= shortest):
        following.setdefault(int(edges.src[e]), []).append(int(edges.dst[e]))
    return following


def _draw_path(following: dict[int, list[int]], rng: np.random.Generator) -> list[int]:
    path, v = [], -1
    while v in following:
        v = following[v][rng.integers(len(following[v]))]
        path.append(v)
    return path


def _fastest_device(problem: Problem, path: list[int], rng: np.random.Generator) -> int:
    seconds_VD = problem.arrays.op_seconds[path]
    unable_D = np.isinf(seconds_VD).sum(axis=0)
    total_D = np.where(np.isinf(seconds_VD), 0.0, seconds_VD).sum(axis=0)
    return int(np.lexsort((rng.random(problem.num_devices), total_D, unable_D))[0])
