"""What disturbs measurements on this machine: other programs, and devices that share a core."""

import os
import time

import numpy as np
import psutil
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.einsum import Given, lower
from doppler.einsum.language.resolver import parse_program
from doppler.graph import DataflowGraph
from doppler.problem import build
from doppler.system import System

# Equal work for each device: products of this size, a millisecond or so of a core each.
_PRODUCTS, _SIZE = 4, 256
_ROUNDS = 7
# Kinds of time in which a core waits; that of guests is counted in user and nice already.
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")


class OtherLoad:
    """Time of this process's cores that others have taken since this object was made.

    Other programs, other virtual machines on the same processors and the kernel all count; child
    processes of this one do not.
    """

    def __init__(self) -> None:
        self._begin = _times()

    def cores(self) -> float:
        """How many cores the others kept busy on average."""
        (begin_s, busy_s, own_s), (now_s, now_busy_s, now_own_s) = self._begin, _times()
        others_s = (now_busy_s - busy_s) - (now_own_s - own_s)
        return max(0.0, others_s / max(now_s - begin_s, 1e-9))


def _times() -> tuple[float, float, float]:
    """Seconds: of the clock, of the cores that were busy, of this process and its children."""
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
    """How many times faster all devices finish independent ops than one device does.

    Nothing moves between the devices, so that on as many cores as devices it is nearly their
    number. It is less where devices share a core, or where another program uses one.

    Args:
        system: that executes, with a device for each of the cluster's.
        cluster: the devices.
        rng: draws the order of the executions.
    """
    problem = build(_independent_ops(cluster.num_devices), cluster)
    spread_V = np.arange(problem.num_ops) % problem.num_devices
    device_BV: NDArray[np.int64] = np.stack([np.zeros_like(spread_V), spread_V])
    seconds_BR = np.empty((2, _ROUNDS))
    with system.open(problem) as session:
        for r in range(_ROUNDS):
            for b in rng.permutation(2):
                seconds_BR[b, r] = session.measure(device_BV[b : b + 1], rng=rng).seconds[0, 0]
    one_s, all_s = np.median(seconds_BR, axis=1)
    return float(one_s / all_s)


def _independent_ops(num_devices: int) -> DataflowGraph:
    lines = ["program independent", ""]
    for i in range(_PRODUCTS * num_devices):
        lines += [
            f"input a{i}[{_SIZE}, {_SIZE}] f32",
            f"input b{i}[{_SIZE}, {_SIZE}] f32",
            f"c{i}[i, k] = sum(j) a{i}[i, j] * b{i}[j, k]",
        ]
    program = parse_program("\n".join(lines) + "\n", file="independent")
    return lower(program, Given().splits(program, 1))
