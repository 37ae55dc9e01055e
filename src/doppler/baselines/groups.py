"""Groups of ops that go to one device: the ends of heavy edges, joined under a cap on loads.

Those that the problem itself has are where it begins.

Shape suffixes: V ops, E edges, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem
from doppler.support.compiled import compiled


class Groups(NamedTuple):
    """A forest of ops, whose roots stand for their groups."""

    src: NDArray[np.int64]  # [E]
    dst: NDArray[np.int64]  # [E]
    parent: NDArray[np.int64]  # [V] itself for a root
    load: NDArray[np.float64]  # [V, D] of roots: seconds of their ops, inf where one cannot run


def make_groups(problem: Problem) -> Groups:
    """Space for the groups of one problem."""
    return Groups(
        src=problem.graph.edges.src.copy(),
        dst=problem.graph.edges.dst.copy(),
        parent=np.zeros(problem.num_ops, np.int64),
        load=np.zeros((problem.num_ops, problem.num_devices)),
    )


@compiled
def root_of(groups, v):
    """The op that stands for the group of op v.

    Source: Galler and Fischer, "An improved equivalence algorithm", CACM 1964, with paths halved.
    """
    parent = groups.parent
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@compiled
def join_groups(p, groups, heavy, cap_s):
    """Make the problem's groups anew, and join those at the ends of the edges ``heavy``, in order.

    Two groups stay apart where no device could run both within ``cap_s`` seconds.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads in place of his estimate of the makespan.
    """
    num_ops, num_devices = p.op_seconds.shape
    load = groups.load
    for v in range(num_ops):
        groups.parent[v] = p.group[v]
        for d in range(num_devices):
            load[v, d] = p.op_seconds[v, d]
    for v in range(num_ops):
        if p.group[v] != v:
            for d in range(num_devices):
                load[p.group[v], d] += load[v, d]
    for e in heavy:
        a, b = root_of(groups, groups.src[e]), root_of(groups, groups.dst[e])
        least = np.inf
        for d in range(num_devices):
            least = min(least, load[a, d] + load[b, d])
        if a != b and least <= cap_s:
            groups.parent[b] = a
            for d in range(num_devices):
                load[a, d] += load[b, d]


@compiled
def label_groups(groups, group_V):
    """Write the root of every op into ``group_V``."""
    for v in range(len(group_V)):
        group_V[v] = root_of(groups, v)
