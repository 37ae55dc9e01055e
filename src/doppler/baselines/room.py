"""Room on the devices as ops are placed one by one, compiled: a rule for who places step by step.

An op brings its inputs, its output and copies of the regions that it reads to its device. Regions
and their copies leave once all their readers are placed, as if ops ran one by one, unless they
stay. Shape suffixes: V ops, R regions, I inputs, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.simulator.state import memory_can_lack, output_bytes
from doppler.support.compiled import compiled


class Room(NamedTuple):
    """What is on each device; reused by the next run."""

    bytes: NDArray[np.float64]  # [D] in use
    unread: NDArray[np.int64]  # [R] readers that are not placed, one more if it stays
    has_region: NDArray[np.bool_]  # [R, D]
    has_input: NDArray[np.bool_]  # [I, D]
    # [V + 1] op v needs inputs[input_ptr[v]:input_ptr[v + 1]], which counts where memory can lack.
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int64]
    most: NDArray[np.float64]  # [D] bytes that may be in use
    limited: bool  # whether anything can overflow at all
    lacking: NDArray[np.float64]  # [D] scratch


def make_room(p: ProblemArrays, share: float = 1.0) -> Room:
    """Of one problem, and so much of each device's memory; inf: whoever places does not ask."""
    num_regions, num_devices = len(p.region_bytes), len(p.memory_bytes)
    limited = share < np.inf and memory_can_lack(p)
    input_ptr = np.zeros(len(p.op_seconds) + 1, np.int64)
    inputs = input_ptr[:0]
    if limited:
        input_ptr, inputs = inputs_of(p)
    return Room(
        bytes=np.zeros(num_devices),
        unread=np.zeros(num_regions, np.int64),
        has_region=np.zeros((num_regions, num_devices), np.bool_),
        has_input=np.zeros((len(p.input_bytes), num_devices), np.bool_),
        input_ptr=input_ptr,
        inputs=inputs,
        most=share * p.memory_bytes,
        limited=limited,
        lacking=np.zeros(num_devices),
    )


def inputs_of(p: ProblemArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Op v needs the inputs ``inputs[ptr[v]:ptr[v + 1]]``: ptr [V + 1] and inputs."""
    input_N = np.repeat(np.arange(len(p.input_bytes)), np.diff(p.input_ptr))
    op_N, input_N = np.unique(np.stack([p.input_consumers, input_N]), axis=1)
    return np.searchsorted(op_N, np.arange(len(p.op_seconds) + 1)), input_N.copy()


@compiled
def empty_room(p, m, stay):
    """Nothing is anywhere; with ``stay`` regions will stay where they are."""
    m.bytes[:] = 0.0
    for r in range(len(m.unread)):
        m.unread[r] = p.consumer_ptr[r + 1] - p.consumer_ptr[r] + stay
    m.has_region[:] = False
    m.has_input[:] = False


@compiled
def overflow_bytes(p, m, v, d, others):
    """By how much device d would overflow with op v and ``others``, further bytes, on it."""
    total = m.bytes[d] + output_bytes(p, v) + others
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        if not m.has_region[p.reads[i], d]:
            total += p.region_bytes[p.reads[i]]
    for i in range(m.input_ptr[v], m.input_ptr[v + 1]):
        if not m.has_input[m.inputs[i], d]:
            total += p.input_bytes[m.inputs[i]]
    return max(0.0, total - m.most[d])


@compiled
def bring_inputs(p, m, v, d):
    """What op v reads from outside is on device d."""
    for i in range(m.input_ptr[v], m.input_ptr[v + 1]):
        if not m.has_input[m.inputs[i], d]:
            m.has_input[m.inputs[i], d] = True
            m.bytes[d] += p.input_bytes[m.inputs[i]]


@compiled
def take_room(p, m, v, d):
    """Op v and what it reads take their room on device d."""
    m.bytes[d] += output_bytes(p, v)
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        m.has_region[r, d] = True
    bring_inputs(p, m, v, d)
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        if not m.has_region[r, d]:
            m.has_region[r, d] = True
            m.bytes[d] += p.region_bytes[r]


@compiled
def give_back(p, m, v):
    """Op v has read: the regions that all have read now are kept nowhere any more."""
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        m.unread[r] -= 1
        if m.unread[r] == 0:
            for to in range(len(m.bytes)):
                if m.has_region[r, to]:
                    m.has_region[r, to] = False
                    m.bytes[to] -= p.region_bytes[r]
