"""Compiled: notes on a run of the work-conserving engine, and when a run can stop early.

Vocabulary and dimensions as in state.py; M notes of memory. Indices: v op, d device, i position in
a list of notes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.support.compiled import compiled

# Number of task ends between two notes of memory.
_ENDS_PER_NOTE = 32


class Notes(NamedTuple):
    """Tasks in the order of their end, and memory in use at some instants.

    Note m of memory is for the moment of an instant before any task ends. If memory cannot be short
    there are no such notes.
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
    """Allocate notes for runs of one problem.

    Args:
        arrays: the problem.
        num_tasks: number of ops and transfers.
        memory: whether memory is limited.
    """
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
    """Allocate a watch for runs of one problem.

    Args:
        arrays: the problem.
        num_tasks: number of ops and transfers.
        num_copies: number of copies of regions.
        memory: whether memory is limited.
    """
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
    """Whether op v, which starts now, or the remaining work of its device ends after the limit."""
    d = tasks[v].resource
    left_s = watch.left_s[d]
    watch.left_s[d] = left_s - (tasks[v].finish - now) / watch.streams[0]
    return now + max(watch.tail_s[v], left_s) > watch.limit_s[0]


@compiled
def note_memory(state, notes):
    """Record memory at the beginning of an instant, before any task ends."""
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
    """Record that a task has ended and its transfers are listed."""
    num = notes.num_ended[0]
    notes.ended[num] = task
    notes.listed[num] = state.num_transfers[0]
    notes.num_ended[0] = num + 1


@compiled
def copy_notes(source, target, begin):
    """Copy notes of tasks from ``begin`` on; before, devices may have held other inputs."""
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
    """The number of notes of memory taken when at most so many tasks had ended."""
    low, high = 0, notes.num_noted[0]
    while low < high:
        middle = (low + high) // 2
        if notes.noted[middle] <= num_ended:
            low = middle + 1
        else:
            high = middle
    return low
