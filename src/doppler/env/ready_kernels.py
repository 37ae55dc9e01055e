"""Compiled: queues of ready ops, to find those that can start earliest among thousands.

A ready op is in two lists of each device that may run it, one after the other. First it waits there
for its data, sorted by their arrival; then for the device, sorted by b_level. Devices only become
free later, so no op goes back, and a step looks only at the heads of the lists. Placed ops stay in
the lists of other devices until a step meets them.

Dimensions: V ops, D devices. Indices: u and v ops, d device, i and j positions in a list; kind: of
the two lists of a device, waiting for data or ready.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.env.problem_view import LARGE
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push

# Number of sorted ops at the head of a list, more than are usually needed; the others are a heap.
_FRONT = 128
_READY, _WAITING = 0, 1


class ReadyQueues(NamedTuple):
    """Lists of entries (start, rank of the op); on small graphs they have no room."""

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
    """Allocate buffers for episodes with this many ops."""
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
def empty_ready_queues(queues):
    """Empty all lists."""
    queues.num_front[:, :] = 0
    queues.num_rest[:, :] = 0
    queues.num_queued[0] = 0
    queues.moved[:] = 0


@compiled
def bring_forward(view, episode, step, num_released, num):
    """Move the candidates that can start earliest to the front of their list, in order.

    Starts are those without contention. Ties go to the larger b_level, then to the smaller op.

    Args:
        view: ViewArrays.
        episode: its state, episode.Episode.
        step: any number above those of earlier calls.
        num_released: how many ops were candidates so far.
        num: how many to move.
    """
    queues = episode.ready
    for i in range(queues.num_queued[0], num_released):
        if episode.ops[episode.released[i]].device < 0:
            _queue(view, episode, episode.released[i])
    queues.num_queued[0] = num_released
    for d in range(len(episode.devices)):
        _move_ready(view, episode, d)
        queues.at[_READY, d] = 0
        queues.at[_WAITING, d] = 0
        _find_next(view, episode, d)
    count = 0
    while count < num:
        first = 0
        for d in range(1, len(episode.devices)):
            if queues.start[d] < queues.start[first] or (
                queues.start[d] == queues.start[first] and queues.rank[d] < queues.rank[first]
            ):
                first = d
        if queues.start[first] == np.inf:
            break
        v = view.by_rank[queues.rank[first]]
        if queues.moved[v] != step:
            queues.moved[v] = step
            swap_candidates(episode, count, episode.position[v])
            count += 1
        queues.at[queues.list[first], first] += 1
        _find_next(view, episode, first)


@compiled
def _move_ready(view, episode, d):
    """Let ops whose data could be there once device d is free wait for the device."""
    queues, free = episode.ready, episode.devices[d].available
    while True:
        front, num = queues.front[_WAITING, d], 0
        while num < queues.num_front[_WAITING, d] and front[num].key <= free:
            if not _is_stale(view, episode, view.by_rank[front[num].task], d):
                _insert(queues, _READY, d, 0.0, front[num].task)
            num += 1
        if num > 0:
            _remove(queues, _WAITING, d, 0, num)
        if queues.num_front[_WAITING, d] > 0 or queues.num_rest[_WAITING, d] == 0:
            return
        _refill(view, episode, _WAITING, d)


@compiled
def _find_next(view, episode, d):
    """Find which op comes next in the lists of device d, dropping placed ops."""
    queues = episode.ready
    queues.start[d] = np.inf
    for kind in range(2):
        i = queues.at[kind, d]
        front = queues.front[kind, d]
        while True:
            if i == queues.num_front[kind, d]:
                _refill(view, episode, kind, d)
            num = 0
            while i + num < queues.num_front[kind, d] and _is_stale(
                view, episode, view.by_rank[front[i + num].task], d
            ):
                num += 1
            if num == 0:
                break
            _remove(queues, kind, d, i, i + num)
        if i < queues.num_front[kind, d]:
            queues.start[d] = episode.devices[d].available if kind == _READY else front[i].key
            queues.rank[d] = front[i].task
            queues.list[d] = kind
            return


@compiled
def swap_candidates(episode, i, j):
    """Swap two candidates in the list."""
    u, v = episode.candidates[i], episode.candidates[j]
    episode.candidates[i], episode.candidates[j] = v, u
    episode.position[u], episode.position[v] = j, i


@compiled
def _is_stale(view, episode, v, d):
    """Whether op v no longer waits for device d."""
    home = episode.home[view.group[v]]
    return episode.ops[v].device >= 0 or (home >= 0 and home != d)


@compiled
def _queue(view, episode, v):
    """Put op v into a list of each device that may run it."""
    home = episode.home[view.group[v]]
    for d in range(len(episode.devices)):
        if view.able[v, d] if home < 0 else d == home:
            ready = episode.on_device[v, d].data_ready
            if ready <= episode.devices[d].available:
                _insert(episode.ready, _READY, d, 0.0, view.rank[v])
            else:
                _insert(episode.ready, _WAITING, d, ready, view.rank[v])


@compiled
def _comes_first(key, rank, other):
    return key < other.key or (key == other.key and rank < other.task)


@compiled
def _insert(queues, kind, d, key, rank):
    front = queues.front[kind, d]
    num = queues.num_front[kind, d]
    num_rest = queues.num_rest[kind, d]
    base = (kind * len(queues.start) + d) * len(queues.moved)
    if not (num > 0 and _comes_first(key, rank, front[num - 1])):
        if num_rest > 0 or num == len(front):
            heap_push(queues.rest, base, num_rest, key, rank)
            queues.num_rest[kind, d] += 1
            return
    if num == len(front):
        num -= 1
        heap_push(queues.rest, base, num_rest, front[num].key, front[num].task)
        queues.num_rest[kind, d] += 1
    i = num
    while i > 0 and _comes_first(key, rank, front[i - 1]):
        front[i].key = front[i - 1].key
        front[i].task = front[i - 1].task
        i -= 1
    front[i].key = key
    front[i].task = rank
    queues.num_front[kind, d] = num + 1


@compiled
def _remove(queues, kind, d, begin, end):
    """Take the sorted entries from ``begin`` to ``end`` out of a list."""
    front, num = queues.front[kind, d], queues.num_front[kind, d]
    for i in range(end, num):
        front[begin + i - end].key = front[i].key
        front[begin + i - end].task = front[i].task
    queues.num_front[kind, d] = num - (end - begin)


@compiled
def _refill(view, episode, kind, d):
    """Sort the first entries of the rest into the front."""
    queues = episode.ready
    base = (kind * len(queues.start) + d) * len(queues.moved)
    while queues.num_rest[kind, d] > 0 and queues.num_front[kind, d] < queues.front.shape[2]:
        key = queues.rest[base].key
        rank = heap_pop(queues.rest, base, queues.num_rest[kind, d])
        queues.num_rest[kind, d] -= 1
        if not _is_stale(view, episode, view.by_rank[rank], d):
            entry = queues.front[kind, d, queues.num_front[kind, d]]
            entry.key = key
            entry.task = rank
            queues.num_front[kind, d] += 1
