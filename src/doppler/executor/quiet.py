"""Detects what disturbs measurements on this machine: other programs, and shared cores."""

import os
import time

import numpy as np
import psutil
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from doppler.cluster import Cluster
from doppler.einsum import Given, lower
from doppler.einsum.language.resolver import parse_program
from doppler.graph import DataflowGraph
from doppler.problem import Problem, build
from doppler.system import System

# The work of each device consists of products of this size, about a millisecond of a core each.
_PRODUCTS, _SIZE = 4, 512
_ROUNDS = 7
# Kinds of time in which a core is idle; guest time is already part of user and nice.
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")


class OtherLoad:
    """Core time that other programs have used since this object was created.

    It includes other programs, other virtual machines on the same processors and the kernel, but
    not child processes of this one.
    """

    def __init__(self) -> None:
        self._begin = _times()

    def cores(self) -> float:
        """How many cores the others kept busy on average."""
        (begin_s, busy_s, own_s), (now_s, now_busy_s, now_own_s) = self._begin, _times()
        others_s = (now_busy_s - busy_s) - (now_own_s - own_s)
        return max(0.0, others_s / max(now_s - begin_s, 1e-9))


def _times() -> tuple[float, float, float]:
    """Seconds of the clock, of all busy cores, and of this process and its children."""
    allowed = os.sched_getaffinity(0)
    busy_s = 0.0
    for core, one in enumerate(psutil.cpu_times(percpu=True)):
        if core in allowed:
            busy_s += sum(s for kind, s in one._asdict().items() if kind not in _NOT_BUSY)
    mine = psutil.Process()
    own_s = 0.0
    for process in (mine, *mine.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        own_s += used.user + used.system
    return time.monotonic(), busy_s, own_s


def speed_up(system: System, cluster: Cluster, rng: np.random.Generator) -> float:
    """Measure how many times faster all devices finish independent ops than one device.

    Nothing moves between the devices, so on enough cores the result is nearly the number of
    devices. It is smaller if devices share a core or another program uses one.

    Args:
        system: that executes, with one device for each of the cluster's.
        cluster: the devices.
        rng: draws the order of the executions.
    """
    problem, spread_V = independent_work(cluster)
    device_BV: NDArray[np.int64] = np.stack([np.zeros_like(spread_V), spread_V])
    seconds_BR = np.empty((2, _ROUNDS))
    with system.open(problem) as session:
        for r in range(_ROUNDS):
            for b in rng.permutation(2):
                seconds_BR[b, r] = session.measure(device_BV[b : b + 1], rng=rng).seconds[0, 0]
    one_s, all_s = np.median(seconds_BR, axis=1)
    return float(one_s / all_s)


def independent_work(cluster: Cluster) -> tuple[Problem, NDArray[np.int64]]:
    """Make a problem with an equal amount of independent work for each device.

    Args:
        cluster: the devices.

    Returns:
        The problem, and the device [V] of each op.
    """
    problem = build(_products(cluster.num_devices), cluster)
    edges, num_ops = problem.graph.edges, problem.num_ops
    joined = coo_array((np.ones(len(edges.src)), (edges.src, edges.dst)), shape=(num_ops, num_ops))
    # A product may be lowered to several ops: they stay together.
    product_V = connected_components(joined, directed=False)[1]
    return problem, (product_V % problem.num_devices).astype(np.int64)


def _products(num_devices: int) -> DataflowGraph:
    lines = ["program independent", ""]
    for i in range(_PRODUCTS * num_devices):
        lines += [
            f"input a{i}[{_SIZE}, {_SIZE}] f32",
            f"input b{i}[{_SIZE}, {_SIZE}] f32",
            f"c{i}[i, k] = sum(j) a{i}[i, j] * b{i}[j, k]",
        ]
    program = parse_program("\n".join(lines) + "\n", file="independent")
    return lower(program, Given().splits(program, 1))
