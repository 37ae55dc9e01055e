"""Queues of ready ops, compiled: which can start earliest, where thousands are ready.

An op that is ready is in two lists of each device that may run it, one after the other: it waits
there for its data, by when they could arrive; then for the device, by b_level. A device is free
ever later, so that no op goes back, and a step looks at the heads of the lists alone. Ops that have
been placed stay in the lists of the other devices, until someone comes across them.

Shape suffixes: V ops, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.env.problem_view import LARGE
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push

# Ops at the head of a list that are kept sorted, the others are a heap; more than are asked for.
_FRONT = 128
_IN_TIME, _WAITING = 0, 1


class ReadyQueues(NamedTuple):
    """Lists of entries (start, rank of the op); those of small graphs have no room."""

    front: NDArray[np.void]  # ENTRY [2, D, _FRONT] sorted; none comes behind one of the rest
    num_front: NDArray[np.int64]  # [2, D]
    rest: NDArray[np.void]  # ENTRY [2 * D * V] heaps
    num_rest: NDArray[np.int64]  # [2, D]
    num_queued: NDArray[np.int64]  # [1] ops that have been put into lists
    moved: NDArray[np.int64]  # [V] the last step at which an op was brought forward, from 1 on
    # Of each device, while the lists are gone through:
    at: NDArray[np.int64]  # [2, D] the next entry
    start: NDArray[np.float64]  # [D] when the next op can start there, inf if there is none
    rank: NDArray[np.int64]  # [D] its rank
    list: NDArray[np.int64]  # [D] of the two, the one that it is in


def make_ready_queues(num_ops: int, num_devices: int) -> ReadyQueues:
    """Buffers for episodes of so many ops."""
    room = num_ops if num_ops > LARGE else 0
    return ReadyQueues(
        front=np.zeros((2, num_devices, _FRONT), ENTRY),
        num_front=np.zeros((2, num_devices), np.int64),
        rest=np.zeros(2 * num_devices * room, ENTRY),
        num_rest=np.zeros((2, num_devices), np.int64),
        num_queued=np.zeros(1, np.int64),
        moved=np.zeros(room, np.int64),
        at=np.zeros((2, num_devices), np.int64),
        start=np.zeros(num_devices),
        rank=np.zeros(num_devices, np.int64),
        list=np.zeros(num_devices, np.int64),
    )


@compiled
def empty_ready_queues(q):
    """Nothing is ready."""
    q.num_front[:, :] = 0
    q.num_rest[:, :] = 0
    q.num_queued[0] = 0
    q.moved[:] = 0


@compiled
def bring_forward(w, e, step, num_released, num):
    """Move the ``num`` candidates that can start earliest to the front of their list, in order.

    Starts are those without contention. Ties go to the larger b_level, then to the smaller op.
    step: any number above those of earlier calls. num_released: how many were candidates so far.
    """
    q = e.ready
    for i in range(q.num_queued[0], num_released):
        if e.ops[e.released[i]].device < 0:
            _queue(w, e, e.released[i])
    q.num_queued[0] = num_released
    for d in range(len(e.devices)):
        _let_in_time(w, e, d)
        q.at[_IN_TIME, d] = 0
        q.at[_WAITING, d] = 0
        _look(w, e, d)
    count = 0
    while count < num:
        first = 0
        for d in range(1, len(e.devices)):
            if q.start[d] < q.start[first] or (
                q.start[d] == q.start[first] and q.rank[d] < q.rank[first]
            ):
                first = d
        if q.start[first] == np.inf:
            break
        v = w.by_rank[q.rank[first]]
        if q.moved[v] != step:
            q.moved[v] = step
            swap_candidates(e, count, e.position[v])
            count += 1
        q.at[q.list[first], first] += 1
        _look(w, e, first)


@compiled
def _let_in_time(w, e, d):
    """What waits for data that could be there once device d is free waits for the device."""
    q, free = e.ready, e.devices[d].available
    while True:
        front, num = q.front[_WAITING, d], 0
        while num < q.num_front[_WAITING, d] and front[num].key <= free:
            if not _is_stale(w, e, w.by_rank[front[num].task], d):
                _insert(q, _IN_TIME, d, 0.0, front[num].task)
            num += 1
        if num > 0:
            _remove(q, _WAITING, d, 0, num)
        if q.num_front[_WAITING, d] > 0 or q.num_rest[_WAITING, d] == 0:
            return
        _refill(w, e, _WAITING, d)


@compiled
def _look(w, e, d):
    """Note which op comes next in the lists of device d, without what is stale."""
    q = e.ready
    q.start[d] = np.inf
    for kind in range(2):
        i = q.at[kind, d]
        front = q.front[kind, d]
        while True:
            if i == q.num_front[kind, d]:
                _refill(w, e, kind, d)
            num = 0
            while i + num < q.num_front[kind, d] and _is_stale(
                w, e, w.by_rank[front[i + num].task], d
            ):
                num += 1
            if num == 0:
                break
            _remove(q, kind, d, i, i + num)
        if i < q.num_front[kind, d]:
            q.start[d] = e.devices[d].available if kind == _IN_TIME else front[i].key
            q.rank[d] = front[i].task
            q.list[d] = kind
            return


@compiled
def swap_candidates(e, i, j):
    """Swap two candidates of the list."""
    u, v = e.candidates[i], e.candidates[j]
    e.candidates[i], e.candidates[j] = v, u
    e.position[u], e.position[v] = j, i


@compiled
def _is_stale(w, e, v, d):
    """Whether op v does not wait for device d any more."""
    home = e.home[w.group[v]]
    return e.ops[v].device >= 0 or (home >= 0 and home != d)


@compiled
def _queue(w, e, v):
    """Put op v into a list of each device that may run it."""
    home = e.home[w.group[v]]
    for d in range(len(e.devices)):
        if w.able[v, d] if home < 0 else d == home:
            ready = e.on_device[v, d].data_ready
            if ready <= e.devices[d].available:
                _insert(e.ready, _IN_TIME, d, 0.0, w.rank[v])
            else:
                _insert(e.ready, _WAITING, d, ready, w.rank[v])


@compiled
def _comes_first(key, rank, other):
    return key < other.key or (key == other.key and rank < other.task)


@compiled
def _insert(q, kind, d, key, rank):
    front, num, num_rest = q.front[kind, d], q.num_front[kind, d], q.num_rest[kind, d]
    base = (kind * len(q.start) + d) * len(q.moved)
    if not (num > 0 and _comes_first(key, rank, front[num - 1])):
        if num_rest > 0 or num == len(front):
            heap_push(q.rest, base, num_rest, key, rank)
            q.num_rest[kind, d] += 1
            return
    if num == len(front):
        num -= 1
        heap_push(q.rest, base, num_rest, front[num].key, front[num].task)
        q.num_rest[kind, d] += 1
    i = num
    while i > 0 and _comes_first(key, rank, front[i - 1]):
        front[i].key = front[i - 1].key
        front[i].task = front[i - 1].task
        i -= 1
    front[i].key = key
    front[i].task = rank
    q.num_front[kind, d] = num + 1


@compiled
def _remove(q, kind, d, begin, end):
    """Take the sorted entries from ``begin`` to ``end`` out of a list."""
    front, num = q.front[kind, d], q.num_front[kind, d]
    for i in range(end, num):
        front[begin + i - end].key = front[i].key
        front[begin + i - end].task = front[i].task
    q.num_front[kind, d] = num - (end - begin)


@compiled
def _refill(w, e, kind, d):
    """Sort the first entries of the rest into the front."""
    q = e.ready
    base = (kind * len(q.start) + d) * len(q.moved)
    while q.num_rest[kind, d] > 0 and q.num_front[kind, d] < q.front.shape[2]:
        key = q.rest[base].key
        rank = heap_pop(q.rest, base, q.num_rest[kind, d])
        q.num_rest[kind, d] -= 1
        if not _is_stale(w, e, w.by_rank[rank], d):
            entry = q.front[kind, d, q.num_front[kind, d]]
            entry.key = key
            entry.task = rank
            q.num_front[kind, d] += 1
