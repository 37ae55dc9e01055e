"""Compiled: notes of a run of the work-conserving engine, and when a run need not go on.

Vocabulary and dimensions as in state.py; M notes of memory. Indices: v op, d device, i position in
a list of notes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.support.compiled import compiled

# Ends of tasks between two notes of memory.
_ENDS_PER_NOTE = 32


class Notes(NamedTuple):
    """Tasks in the order of their end, and the memory that was held now and then.

    The m-th note of memory is of an instant, before anything ends in it. Where memory cannot be
    short there is none.
    """

    ended: NDArray[np.uint32]  # [K]
    listed: NDArray[np.int64]  # [K] transfers that were listed once that task had ended
    num_ended: NDArray[np.int64]  # [1]
    noted: NDArray[np.int64]  # [M] tasks that had ended then; or [0]
    memory: NDArray[np.float64]  # [M, D]
    peak: NDArray[np.float64]  # [M, D]
    num_noted: NDArray[np.int64]  # [1]
    inputs: NDArray[np.float64]  # [D] memory of the inputs


def make_notes(arrays: ProblemArrays, num_tasks: int, *, memory: bool) -> Notes:
    """Buffers for runs of one problem. memory: it counts."""
    num_notes = num_tasks // _ENDS_PER_NOTE + 1 if memory else 0
    num_devices = arrays.op_seconds.shape[1]
    return Notes(
        ended=np.zeros(num_tasks, np.uint32),
        listed=np.zeros(num_tasks, np.int64),
        num_ended=np.zeros(1, np.int64),
        noted=np.zeros(num_notes, np.int64),
        memory=np.zeros((num_notes, num_devices)),
        peak=np.zeros((num_notes, num_devices)),
        num_noted=np.zeros(1, np.int64),
        inputs=np.zeros(num_devices),
    )


class Watch(NamedTuple):
    """What one run is watched by, reused by the next."""

    limit_s: NDArray[np.float64]  # [1] a run that surely takes longer need not end
    tail_s: NDArray[np.float64]  # [V] from the start of an op to the end of all, at least
    left_s: NDArray[np.float64]  # [D] that the ops of a device that have not started keep it busy
    streams: NDArray[np.float64]  # [1] ops that a device runs at a time
    used: NDArray[np.int64]  # [R + T] the last run in which uses of a copy were counted
    run: NDArray[np.int64]  # [1]
    notes: Notes


def make_watch(arrays: ProblemArrays, num_tasks: int, num_copies: int, *, memory: bool) -> Watch:
    """Buffers for runs of one problem. memory: it counts."""
    num_ops, num_devices = arrays.op_seconds.shape
    return Watch(
        limit_s=np.zeros(1),
        tail_s=np.zeros(num_ops),
        left_s=np.zeros(num_devices),
        streams=np.ones(1),
        used=np.zeros(num_copies, np.int64),
        run=np.zeros(1, np.int64),
        notes=make_notes(arrays, num_tasks, memory=memory),
    )


@compiled
def starts_too_late(tasks, v, now, watch):
    """Whether op v, which starts now, or what its device has yet to do ends behind the limit."""
    d = tasks[v].resource
    left_s = watch.left_s[d]
    watch.left_s[d] = left_s - (tasks[v].finish - now) / watch.streams[0]
    return now + max(watch.tail_s[v], left_s) > watch.limit_s[0]


@compiled
def note_memory(state, notes):
    """An instant begins: nothing has ended in it."""
    num = notes.num_noted[0]
    if len(notes.noted) == 0 or notes.num_ended[0] < _ENDS_PER_NOTE * (num + 1):
        return
    notes.noted[num] = notes.num_ended[0]
    for d in range(len(state.devices)):
        notes.memory[num, d] = state.devices[d].memory
        notes.peak[num, d] = state.devices[d].peak
    notes.num_noted[0] = num + 1


@compiled
def note_end(state, task, notes):
    """A task has ended, and what it sends is listed."""
    num = notes.num_ended[0]
    notes.ended[num] = task
    notes.listed[num] = state.num_transfers[0]
    notes.num_ended[0] = num + 1


@compiled
def copy_notes(source, target, begin):
    """What was noted of tasks from number ``begin`` on; before, devices may hold other inputs."""
    for i in range(begin, source.num_ended[0]):
        target.ended[i] = source.ended[i]
        target.listed[i] = source.listed[i]
    target.num_ended[0] = source.num_ended[0]
    first = num_noted_before(target, begin)
    for d in range(len(target.inputs)):
        more = source.inputs[d] - target.inputs[d]
        if more != 0.0:
            for i in range(first):
                target.memory[i, d] += more
                target.peak[i, d] += more
    for i in range(first, source.num_noted[0]):
        target.noted[i] = source.noted[i]
        for d in range(len(target.inputs)):
            target.memory[i, d] = source.memory[i, d]
            target.peak[i, d] = source.peak[i, d]
    target.num_noted[0] = source.num_noted[0]
    for d in range(len(target.inputs)):
        target.inputs[d] = source.inputs[d]


@compiled
def num_noted_before(notes, num_ended):
    """The notes of memory of when at most so many tasks had ended."""
    low, high = 0, notes.num_noted[0]
    while low < high:
        middle = (low + high) // 2
        if notes.noted[middle] <= num_ended:
            low = middle + 1
        else:
            high = middle
    return low
