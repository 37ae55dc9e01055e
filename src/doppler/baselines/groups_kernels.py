"""Compiled: groups ops for one device by joining the ends of heavy edges, up to a cap on load.

It starts from the groups of the problem itself.

Dimensions: V ops, E edges, D devices. Indices: v op, e edge, d device.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem
from doppler.support.compiled import compiled


class Groups(NamedTuple):
    """A forest of ops; the root of a tree stands for its group."""

    src: NDArray[np.int64]  # [E]
    dst: NDArray[np.int64]  # [E]
    parent: NDArray[np.int64]  # [V] itself for a root
    load: NDArray[np.float64]  # [V, D] of roots: seconds of their ops, inf where one cannot run


def make_groups(problem: Problem) -> Groups:
    """Allocate the groups of one problem."""
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
def join_groups(problem, groups, heavy, cap_s):
    """Start with the problem's groups, and join those at the ends of heavy edges, in order.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads instead of his estimate of the makespan.

    Args:
        problem: ProblemArrays.
        groups: Groups, filled in.
        heavy: numbers of the edges.
        cap_s: two groups stay separate if no device can run both within this many seconds.
    """
    num_ops, num_devices = problem.op_seconds.shape
    load = groups.load
    for v in range(num_ops):
        groups.parent[v] = problem.group[v]
        for d in range(num_devices):
            load[v, d] = problem.op_seconds[v, d]
    for v in range(num_ops):
        if problem.group[v] != v:
            for d in range(num_devices):
                load[problem.group[v], d] += load[v, d]
    for e in heavy:
        src_root, dst_root = root_of(groups, groups.src[e]), root_of(groups, groups.dst[e])
        least = np.inf
        for d in range(num_devices):
            least = min(least, load[src_root, d] + load[dst_root, d])
        if src_root != dst_root and least <= cap_s:
            groups.parent[dst_root] = src_root
            for d in range(num_devices):
                load[src_root, d] += load[dst_root, d]


@compiled
def label_groups(groups, group_V):
    """Write the root of every op's group.

    Args:
        groups: Groups.
        group_V: filled in.
    """
    for v in range(len(group_V)):
        group_V[v] = root_of(groups, v)
