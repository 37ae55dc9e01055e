"""Shared by list schedulers: ready ops, earliest starts and gaps, memory, random ties.

A list scheduler repeatedly takes an op whose producers are all scheduled, and gives it a device and
a start. A region's transfer to another device begins when its producer ends and takes its own
seconds, whatever else the link carries: like the published methods, these ignore contention.

Memory (free_memory_kernels.py): an op goes to the device that its method prefers among those whose
memory still suffices, or else to the one that overflows least. In every other run, starting with
the first, regions and copies are assumed to stay, so that what fits there surely fits. In the
remaining runs they are freed after their last reader. Measured under tight memory, runs of the
second kind fit more often, and runs of the first kind are a quarter faster. The best of several
runs is as fast as with the first kind alone and fits as often as with the second alone. The system
decides what fits.

Groups of the problem: the first op of a group takes the whole group to the device on which the
group would end first, given the start of this op and the groups that are already there. The rule
for memory applies with the inputs of the whole group. The other ops have no choice.

Shape suffixes: B runs, V ops, R regions, I inputs, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import ListDecisions, make_decisions
from doppler.baselines.free_memory_kernels import FreeMemory, make_free_memory
from doppler.baselines.list_scheduling_kernels import schedule_list_batch
from doppler.problem import Problem
from doppler.problem.arrays import ProblemArrays
from doppler.support.compiled.heap import ENTRY

# Times that differ only by rounding errors of sums are tied.
_TIE = 1e-9
_OP = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("before", np.int32),  # the op before it on its device, -1 if there is none
        # The last op before it there with a gap that some op which takes time could take.
        ("gap", np.int32),
        ("pending", np.int32),  # regions whose producer is not scheduled
        ("device", np.int32),
    ]
)
_DEVICE = np.dtype(
    [
        ("first", np.int32),  # the first of its ops, -1 if there is none
        ("last", np.int32),  # the last
        ("gap", np.int32),  # the last with a gap before it, as above, -1 if none
    ]
)


class PartialSchedule(NamedTuple):
    """Buffers of one run, which the next run reuses; after a run they hold its schedule."""

    ops: NDArray[np.void]  # _OP [V]
    devices: NDArray[np.void]  # _DEVICE [D]
    ready: NDArray[np.float64]  # [V, D] when what an op reads can be on a device
    released: NDArray[np.int64]  # [V] the ops that the last commit made ready
    candidates: NDArray[np.void]  # ENTRY [V]
    memory: FreeMemory
    near: bool  # whether copies are asked for where nothing can overflow, too
    tie_s: float
    shortest: NDArray[np.float64]  # [D] seconds of the op that takes least, but not nothing
    # [V] of groups, by their first op: their device, -1 before it is chosen
    home: NDArray[np.int64]
    load: NDArray[np.float64]  # [V, D] seconds of all ops of an op's group
    other_inputs: NDArray[np.float64]  # [V] bytes that the group of an op needs beside the op's own
    booked: NDArray[np.float64]  # [D] seconds of the groups that have it as their home
    after: NDArray[np.float64]  # [V, D] seconds that count beside the end of an op


def make_schedule(
    problem: Problem,
    tie_s: float,
    *,
    near: bool = False,
    after_VD: NDArray[np.float64] | None = None,
) -> PartialSchedule:
    """Allocate buffers for schedules of one problem; times closer than ``tie_s`` are tied."""
    arrays = problem.arrays
    num_ops, num_devices = arrays.op_seconds.shape
    memory = make_free_memory(arrays)
    return PartialSchedule(
        ops=np.zeros(num_ops, _OP),
        devices=np.zeros(num_devices, _DEVICE),
        ready=np.zeros((num_ops, num_devices)),
        released=np.zeros(num_ops, np.int64),
        candidates=np.zeros(num_ops, ENTRY),
        memory=memory,
        near=near,
        tie_s=float(tie_s),
        shortest=arrays.op_seconds.min(axis=0, where=arrays.op_seconds > 0, initial=np.inf),
        home=np.zeros(num_ops, np.int64),
        load=problem.group_seconds,
        other_inputs=_other_inputs(arrays, memory),
        booked=np.zeros(num_devices),
        after=np.zeros((num_ops, num_devices)) if after_VD is None else after_VD,
    )


def _other_inputs(arrays: ProblemArrays, memory: FreeMemory) -> NDArray[np.float64]:
    """Bytes [V] of the inputs that an op's group needs but the op itself does not."""
    op_N = np.repeat(np.arange(len(arrays.group)), np.diff(memory.input_ptr))
    input_N = memory.inputs
    own_V = np.bincount(op_N, arrays.input_bytes[input_N], len(arrays.group))
    root_M, input_M = np.unique(np.stack([arrays.group[op_N], input_N]), axis=1)
    all_V = np.bincount(root_M, arrays.input_bytes[input_M], len(arrays.group))[arrays.group]
    return np.asarray(all_V - own_V, dtype=np.float64)


def tie_seconds(level_V: NDArray[np.float64]) -> float:
    """Return the largest difference of times that counts as a tie, for these levels."""
    return _TIE * float(level_V.max(initial=0.0))


def queue_keys(
    level_V: NDArray[np.float64], num: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return keys [num, V] that rise as levels fall; each row orders equal levels at random."""
    order_V = np.argsort(-level_V)
    fallen_V = np.diff(level_V[order_V], prepend=np.inf) < -tie_seconds(level_V)
    class_V = np.empty(len(level_V))
    class_V[order_V] = np.cumsum(fallen_V)
    return class_V + rng.random((num, len(level_V)))


def schedule_ops(
    problem: Problem,
    level_V: NDArray[np.float64],
    num: int,
    rng: np.random.Generator,
    *,
    insertion: bool,
    home_BV: NDArray[np.int64] | None = None,
    after_VD: NDArray[np.float64] | None = None,
) -> ListDecisions:
    """Schedule ``num`` times: take the candidate of the largest level to its best device.

    Args:
        problem: to schedule.
        level_V: level of each op.
        num: of schedules.
        rng: breaks ties.
        insertion: if true, the best device is the one on which the op ends first, and gaps between
            scheduled ops are used; else the one on which it starts first, after all ops that are
            there.
        home_BV: preferred devices, -1 if an op is free. An op leaves its home only if it cannot run
            or does not fit there, or if its group is elsewhere.
        after_VD: seconds that are added to the end of an op on a device when ends are compared.
    """
    if home_BV is None:
        home_BV = np.full((num, problem.num_ops), -1)
    decisions = make_decisions(num, problem)
    schedule_list_batch(
        problem.arrays,
        make_schedule(problem, tie_seconds(level_V), after_VD=after_VD),
        queue_keys(level_V, num, rng),
        home_BV,
        insertion,
        rng.integers(0, 2**62, size=num),
        decisions,
    )
    return decisions
