"""Compiled: the free memory of devices as ops are placed one by one.

An op brings its inputs, its output and copies of the regions that it reads to its device. Regions
and their copies leave once all their readers are placed, as if ops ran one by one, unless they are
kept.

Dimensions: V ops, R regions, I inputs, D devices. Indices: v op, r region, d device, i position in
a list.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.simulator.state import memory_can_lack
from doppler.simulator.state_kernels import output_bytes
from doppler.support.compiled import compiled


class FreeMemory(NamedTuple):
    """The memory in use on each device; the buffers are reused by the next run."""

    used_bytes: NDArray[np.float64]  # [D] in use
    unread: NDArray[np.int64]  # [R] readers that are not placed, one more if it stays
    has_region: NDArray[np.bool_]  # [R, D]
    has_input: NDArray[np.bool_]  # [I, D]
    # [V + 1] op v needs inputs[input_ptr[v]:input_ptr[v + 1]], which counts where memory can lack.
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int64]
    capacity: NDArray[np.float64]  # [D] bytes that may be in use
    limited: bool  # whether anything can overflow at all
    overflow: NDArray[np.float64]  # [D] scratch


def make_free_memory(arrays: ProblemArrays, share: float = 1.0) -> FreeMemory:
    """Allocate buffers for one problem and a share of each device's memory; inf: no limit."""
    num_regions, num_devices = len(arrays.region_bytes), len(arrays.memory_bytes)
    limited = share < np.inf and memory_can_lack(arrays)
    input_ptr = np.zeros(len(arrays.op_seconds) + 1, np.int64)
    inputs = input_ptr[:0]
    if limited:
        input_ptr, inputs = inputs_of(arrays)
    return FreeMemory(
        used_bytes=np.zeros(num_devices),
        unread=np.zeros(num_regions, np.int64),
        has_region=np.zeros((num_regions, num_devices), np.bool_),
        has_input=np.zeros((len(arrays.input_bytes), num_devices), np.bool_),
        input_ptr=input_ptr,
        inputs=inputs,
        # Avoids 0 * inf, which is NaN.
        capacity=share * arrays.memory_bytes if share < np.inf else np.full(num_devices, np.inf),
        limited=limited,
        overflow=np.zeros(num_devices),
    )


def inputs_of(arrays: ProblemArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ptr [V + 1] and inputs: op v needs the inputs ``inputs[ptr[v]:ptr[v + 1]]``."""
    input_N = np.repeat(np.arange(len(arrays.input_bytes)), np.diff(arrays.input_ptr))
    op_N, input_N = np.unique(np.stack([arrays.input_consumers, input_N]), axis=1)
    return np.searchsorted(op_N, np.arange(len(arrays.op_seconds) + 1)), input_N.copy()


@compiled
def reset_free_memory(problem, memory, keep_regions):
    """Start a new run: nothing is on any device.

    Args:
        problem: ProblemArrays.
        memory: FreeMemory, changed in place.
        keep_regions: whether regions stay after their last reader.
    """
    memory.used_bytes[:] = 0.0
    for r in range(len(memory.unread)):
        memory.unread[r] = problem.consumer_ptr[r + 1] - problem.consumer_ptr[r] + keep_regions
    memory.has_region[:] = False
    memory.has_input[:] = False


@compiled
def overflow_bytes(problem, memory, v, d, other_bytes):
    """Bytes by which device d would overflow with op v on it.

    Args:
        problem: ProblemArrays.
        memory: FreeMemory.
        v: op.
        d: device.
        other_bytes: further bytes that come with the op.
    """
    total = memory.used_bytes[d] + output_bytes(problem, v) + other_bytes
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        if not memory.has_region[problem.reads[i], d]:
            total += problem.region_bytes[problem.reads[i]]
    for i in range(memory.input_ptr[v], memory.input_ptr[v + 1]):
        if not memory.has_input[memory.inputs[i], d]:
            total += problem.input_bytes[memory.inputs[i]]
    return max(0.0, total - memory.capacity[d])


@compiled
def bring_inputs(problem, memory, v, d):
    """Take memory on device d for what op v reads from outside.

    Args:
        problem: ProblemArrays.
        memory: FreeMemory, changed in place.
        v: op.
        d: device.
    """
    for i in range(memory.input_ptr[v], memory.input_ptr[v + 1]):
        if not memory.has_input[memory.inputs[i], d]:
            memory.has_input[memory.inputs[i], d] = True
            memory.used_bytes[d] += problem.input_bytes[memory.inputs[i]]


@compiled
def take_memory(problem, memory, v, d):
    """Take memory on device d for op v and what it reads.

    Args:
        problem: ProblemArrays.
        memory: FreeMemory, changed in place.
        v: op.
        d: device.
    """
    memory.used_bytes[d] += output_bytes(problem, v)
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        memory.has_region[r, d] = True
    bring_inputs(problem, memory, v, d)
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        r = problem.reads[i]
        if not memory.has_region[r, d]:
            memory.has_region[r, d] = True
            memory.used_bytes[d] += problem.region_bytes[r]


@compiled
def release_read_regions(problem, memory, v):
    """Record that op v has read, and free regions whose readers are all placed, on all devices.

    Args:
        problem: ProblemArrays.
        memory: FreeMemory, changed in place.
        v: op.
    """
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        r = problem.reads[i]
        memory.unread[r] -= 1
        if memory.unread[r] == 0:
            for d in range(len(memory.used_bytes)):
                if memory.has_region[r, d]:
                    memory.has_region[r, d] = False
                    memory.used_bytes[d] -= problem.region_bytes[r]
