"""Compiled: ready ops by earliest start, for list schedulers that take the earliest op.

These schedulers need the earliest start of thousands of ready ops on all devices and, among ops
that can start then (within a tie), the one with the smallest key. Here every ready op is in one of
two queues of each device that may run it: either it is expected, sorted by its start there; or it
waits for the device, sorted by its key. Starts only grow as ops are scheduled, so a queued start is
a lower bound. It is recomputed when its turn comes, and the first op is found without looking at
all of them. Only a transfer for one op may bring the start of another forward; that op is then
queued again. If an op could start only slightly later than a tie, the result would depend on the
order in which ops are looked at. In that case the queues report that they cannot decide.

Dimensions: B runs, V ops, E edges, D devices. Indices: v op, r region, e edge, d device, i position
in a list or heap; partial: the schedule so far; queues: what start_of needs beside it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.list_scheduling import PartialSchedule
from doppler.problem import Problem
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push

UNSURE = -1
# With fewer ops, looking at them one by one is faster.
_MAX_OPS_WITHOUT_QUEUES = 256
_EXPECTED, _WAITING = 0, 1


class ReadyOps(NamedTuple):
    """Queues of all devices; they have no room if the ops are looked at one by one."""

    # ENTRY [2 * D * (V + E)] (start, rank), those of waiting ops (0, rank)
    heap: NDArray[np.void]
    num: NDArray[np.int64]  # [2, D]
    free: NDArray[np.float64]  # [D] no op starts there sooner
    soonest: NDArray[np.float64]  # [D] scratch
    stack: NDArray[np.int64]  # [V + E + 2] scratch
    sent: NDArray[np.int64]  # [E] regions that the last op was the first to bring to its device
    candidates: NDArray[np.int64]  # [V] all ready ops, in the order of listing
    position: NDArray[np.int64]  # [V] there


def make_ready_ops(
    problem: Problem, partial: PartialSchedule, *, few: int = _MAX_OPS_WITHOUT_QUEUES
) -> ReadyOps:
    """Allocate buffers for one problem; queues are used if starts and keys decide, without groups.

    The caller must check whether the first op fits in memory.
    """
    num_ops, num_devices = problem.num_ops, problem.num_devices
    num_edges = len(problem.arrays.reads)
    decides = num_ops > few and not (partial.near or problem.has_groups)
    room = num_ops + num_edges if decides else 0
    return ReadyOps(
        heap=np.zeros(2 * num_devices * room, ENTRY),
        num=np.zeros((2, num_devices), np.int64),
        free=np.zeros(num_devices),
        soonest=np.zeros(num_devices),
        stack=np.zeros(room + 2, np.int64),
        sent=np.zeros(num_edges, np.int64),
        candidates=np.zeros(num_ops, np.int64),
        position=np.zeros(num_ops, np.int64),
    )


def orders_and_ranks(
    key_BV: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ops of each run by key, and the rank of each op there, [B, V] each."""
    order_BV = np.argsort(key_BV, axis=1)
    rank_BV = np.empty_like(order_BV)
    np.put_along_axis(rank_BV, order_BV, np.arange(key_BV.shape[1])[None], axis=1)
    return order_BV, rank_BV


@compiled
def empty_ready_ops(ready):
    """Empty the queues."""
    ready.num[:, :] = 0


@compiled
def list_released(start_of, problem, partial, queues, ready, rank_V, size, num_released):
    """Add the released ops to the candidates.

    Args:
        start_of: compiled: start_of(problem, partial, queues, v, d) is when op v can start on
            device d.
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        queues: given to start_of.
        ready: ready ops, ready_ops_kernels.ReadyOps.
        rank_V: place of each op by key.
        size: number of candidates.
        num_released: number of ops to add.

    Returns:
        The new number of candidates.
    """
    for i in range(num_released):
        v = partial.released[i]
        ready.candidates[size] = v
        ready.position[v] = size
        size += 1
        for d in range(len(partial.devices) if len(ready.heap) > 0 else 0):
            _expect(start_of, problem, partial, queues, ready, rank_V, v, d)
    return size


@compiled
def list_again(start_of, problem, partial, queues, ready, rank_V, num_sent, d):
    """Queue ops again after ``num_sent`` regions of ``ready.sent`` were sent to device d."""
    for i in range(num_sent if len(ready.heap) > 0 else 0):
        r = ready.sent[i]
        for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            v = problem.consumers[e]
            if partial.ops[v].pending == 0:
                _expect(start_of, problem, partial, queues, ready, rank_V, v, d)


@compiled
def take_candidate(partial, ready, index, size):
    """Remove and return the candidate at an index, of ``size`` candidates."""
    v, last = ready.candidates[index], ready.candidates[size - 1]
    ready.candidates[index] = last
    ready.position[last] = index
    partial.ops[v].pending = -1
    return v


@compiled
def first_candidate(start_of, problem, partial, queues, ready, by_rank_V):
    """The index of the candidate that is first; ``ready.free`` is to be up to date.

    Args:
        start_of: compiled: start_of(problem, partial, queues, v, d) is when op v can start on
            device d.
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        queues: given to start_of.
        ready: ready ops, ready_ops_kernels.ReadyOps.
        by_rank_V: ops by key.

    Returns:
        UNSURE if queues do not serve or cannot tell.
    """
    if len(ready.heap) == 0:
        return UNSURE
    soonest = np.inf
    for d in range(len(partial.devices)):
        ready.soonest[d] = _soonest_on(start_of, problem, partial, queues, ready, by_rank_V, d)
        soonest = min(soonest, ready.soonest[d])
    best, tied, late = len(by_rank_V), soonest + partial.tie_s, soonest + 3 * partial.tie_s
    for d in range(len(partial.devices)):
        if ready.soonest[d] > late:
            continue
        if ready.num[_WAITING, d] > 0:
            if ready.free[d] > tied:
                return UNSURE
            best = min(best, ready.heap[_base(ready, _WAITING, d)].task)
        rank = _first_expected(start_of, problem, partial, queues, ready, by_rank_V, d, tied, late)
        if rank == UNSURE:
            return UNSURE
        best = min(best, rank)
    return ready.position[by_rank_V[best]]


@compiled
def _soonest_on(start_of, problem, partial, queues, ready, by_rank_V, d):
    """When the first candidate can start on device d, including those that wait for it."""
    free, heap = ready.free[d], ready.heap
    while True:
        kind = _EXPECTED
        base = _base(ready, kind, d)
        is_due = ready.num[kind, d] > 0 and heap[base].key <= free
        if not is_due and ready.num[_WAITING, d] > 0:
            kind = _WAITING
            base = _base(ready, kind, d)
        if ready.num[kind, d] == 0:
            return np.inf
        rank, bound = heap[base].task, max(heap[base].key, free)
        v, start = by_rank_V[rank], np.inf
        if partial.ops[v].pending == 0:
            start = start_of(problem, partial, queues, v, d)
            if start <= bound and not is_due:
                return bound
        ready.num[kind, d] -= 1
        heap_pop(heap, base, ready.num[kind, d] + 1)
        if start <= free:
            _push(ready, _WAITING, d, 0.0, rank)
        elif start < np.inf:
            _push(ready, _EXPECTED, d, start, rank)


@compiled
def _expect(start_of, problem, partial, queues, ready, rank_V, v, d):
    """Queue op v as expected on device d, if it may run there."""
    if problem.op_seconds[v, d] < np.inf:
        _push(ready, _EXPECTED, d, start_of(problem, partial, queues, v, d), rank_V[v])


@compiled
def _first_expected(start_of, problem, partial, queues, ready, by_rank_V, d, tied, late):
    """The smallest rank of ops that can start on device d until ``tied``; a large one if none can.

    UNSURE if an op could start between ``tied`` and ``late``.
    """
    base, best, size = _base(ready, _EXPECTED, d), len(by_rank_V), 1
    ready.stack[0] = 0
    while size > 0:
        size -= 1
        i = ready.stack[size]
        if i >= ready.num[_EXPECTED, d] or ready.heap[base + i].key > late:
            continue
        ready.stack[size] = 2 * i + 1
        ready.stack[size + 1] = 2 * i + 2
        size += 2
        rank = ready.heap[base + i].task
        v = by_rank_V[rank]
        if partial.ops[v].pending == 0 and rank < best:
            start = start_of(problem, partial, queues, v, d)
            if tied < start <= late:
                return UNSURE
            if start <= tied:
                best = rank
    return best


@compiled
def _base(ready, kind, d):
    num_devices = len(ready.free)
    return (kind * num_devices + d) * (len(ready.heap) // (2 * num_devices))


@compiled
def _push(ready, kind, d, key, rank):
    heap_push(ready.heap, _base(ready, kind, d), ready.num[kind, d], key, rank)
    ready.num[kind, d] += 1
