"""Compiled: whether a move of annealing makes a path through the moved ops too long.

Heads and tails describe the present schedule: when each op ends, and the time from its start to the
end of the execution. Both follow from data dependencies and from the order of ops on devices, each
of which runs one at a time. Transfers do not contend. See `stays_within`.

Dimensions: V ops, D devices. Indices: u and v ops, r region, e edge, d device, i and j positions in
a list.

Source: the neighbours of Mastrolilli and Gambardella, "Effective neighbourhood functions for the
flexible job shop problem", Journal of Scheduling 2000, judged by heads and tails with an op taken
out and put in elsewhere; here where it can start first, with transfers, and several ops at once.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem
from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled

# Maximum shifts per op when sorting by insertion; beyond that another method is used.
_MAX_SHIFTS_PER_OP = 16


class LongestPaths(NamedTuple):
    """Heads and tails of a schedule, in seconds.

    The ops of device d, sorted by start, are ``row[row_ptr[d]:row_ptr[d + 1]]``.
    """

    known: NDArray[np.bool_]  # [1] else moves are not judged
    order: NDArray[np.int64]  # [V] ops by their start
    start_s: NDArray[np.float64]  # [V]
    finish_s: NDArray[np.float64]  # [V]
    tail_s: NDArray[np.float64]  # [V] from the start of an op to the end of all that waits for it
    row: NDArray[np.int64]  # [V]
    row_ptr: NDArray[np.int64]  # [D + 1]
    # Scratch, of what moves:
    moved: NDArray[np.int64]  # [V] by its start
    moved_finish_s: NDArray[np.float64]  # [V]

    @classmethod
    def unknown(cls, problem: Problem) -> Self:
        """Allocate the arrays for one problem."""
        num_ops, num_devices = problem.num_ops, problem.num_devices
        return cls(
            known=np.zeros(1, np.bool_),
            order=np.arange(num_ops),
            start_s=np.zeros(num_ops),
            finish_s=np.zeros(num_ops),
            tail_s=np.zeros(num_ops),
            row=np.zeros(num_ops, np.int64),
            row_ptr=np.zeros(num_devices + 1, np.int64),
            moved=np.zeros(num_ops, np.int64),
            moved_finish_s=np.zeros(num_ops),
        )


@compiled
def find_paths(problem, tasks, makespan_s, device_V, paths):
    """Find heads and tails of the schedule that a simulator left behind.

    Args:
        problem: ProblemArrays.
        tasks: of the simulator, in whatever unit it counts time.
        makespan_s: seconds of the schedule.
        device_V: device of each op.
        paths: LongestPaths, filled in.
    """
    last = 0.0
    for v in range(len(device_V)):
        last = max(last, tasks[v].finish)
    scale = makespan_s / last if last > 0.0 else 0.0
    for v in range(len(device_V)):
        paths.start_s[v] = tasks[v].start * scale
        paths.finish_s[v] = tasks[v].finish * scale
    _sort_by_start(paths)
    _list_by_device(device_V, paths)
    _find_tails(problem, device_V, paths)


@compiled
def _sort_by_start(paths):
    """Sort by insertion, because little usually changes; if that is too slow, by Shell's method."""
    num_ops, gap = len(paths.order), 1
    if _insert(paths, gap, _MAX_SHIFTS_PER_OP * num_ops):
        return
    while gap < num_ops:
        gap = 3 * gap + 1
    while gap > 1:
        gap //= 3
        _insert(paths, gap, num_ops**2)


@compiled
def _insert(paths, gap, num_left):
    """Sort elements ``gap`` apart unless that takes too many shifts; return whether it is done."""
    order_V = paths.order
    for i in range(gap, len(order_V)):
        v, j = order_V[i], i
        while j >= gap and _comes_after(paths, order_V[j - gap], v):
            order_V[j] = order_V[j - gap]
            j -= gap
            num_left -= 1
        order_V[j] = v
        if num_left < 0:
            return False
    return True


@compiled
def _comes_after(paths, u, v):
    """Whether op u starts after op v; of equal starts, ops without duration come first."""
    return paths.start_s[u] > paths.start_s[v] or (
        paths.start_s[u] == paths.start_s[v] and paths.finish_s[u] > paths.finish_s[v]
    )


@compiled
def _list_by_device(device_V, paths):
    ptr = paths.row_ptr
    ptr[:] = 0
    for v in range(len(device_V)):
        ptr[device_V[v] + 1] += 1
    for d in range(len(ptr) - 1):
        ptr[d + 1] += ptr[d]
    for i in range(len(device_V) - 1, -1, -1):
        v = paths.order[i]
        end = device_V[v] + 1
        ptr[end] -= 1
        paths.row[ptr[end]] = v
    for d in range(1, len(ptr) - 1):  # each end has become the start of its row
        ptr[d] = ptr[d + 1]
    ptr[len(ptr) - 1] = len(device_V)


@compiled
def _find_tails(problem, device_V, paths):
    paths.tail_s[:] = 0.0
    for d in range(len(paths.row_ptr) - 1):  # scratch: the next op on the same device
        for i in range(paths.row_ptr[d], paths.row_ptr[d + 1]):
            is_last = i + 1 == paths.row_ptr[d + 1]
            paths.moved[paths.row[i]] = -1 if is_last else paths.row[i + 1]
    for i in range(len(device_V) - 1, -1, -1):
        v = paths.order[i]
        d, after = device_V[v], paths.moved[v]
        behind_s = paths.tail_s[after] if after >= 0 else 0.0
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
                behind_s = max(
                    behind_s, _reader_s(problem, device_V, paths, r, d, problem.consumers[e])
                )
        paths.tail_s[v] = problem.op_seconds[v, d] + behind_s


@compiled
def stays_within(problem, walk, stamp, limit_s):
    """Whether no path through the ops of the last move is longer than a limit, approximately.

    A moved op starts when its operands have arrived and the op that its new device runs then has
    ended. All ops that started there later come after it.

    Args:
        problem: ProblemArrays.
        walk: annealing_walk.Walk, its move made.
        stamp: marks the moved ops in ``walk.group``.
        limit_s: seconds.
    """
    first = walk.status[0].num_before
    paths, num, free_s = walk.paths, walk.status[0].num_moved - first, 0.0
    _list_moved(walk, first, num)
    for i in range(num):
        v = paths.moved[i]
        start_s = max(free_s, _first_start_s(problem, walk, stamp, v))
        free_s = start_s + problem.op_seconds[v, walk.device[v]]
        paths.moved_finish_s[v] = free_s
        if free_s + _behind_s(problem, walk, stamp, v, start_s) > limit_s:
            return False
    return True


@compiled
def _list_moved(walk, first, num):
    paths = walk.paths
    for i in range(num):
        v, j = walk.moved[first + i], i
        while j > 0 and paths.start_s[paths.moved[j - 1]] > paths.start_s[v]:
            paths.moved[j] = paths.moved[j - 1]
            j -= 1
        paths.moved[j] = v


@compiled
def _first_start_s(problem, walk, stamp, v):
    """When the operands of op v have arrived and the op that its device runs then has ended."""
    paths, d, start_s = walk.paths, walk.device[v], 0.0
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        r = problem.reads[i]
        u = problem.region_src[r]
        arrival_s = paths.moved_finish_s[u] if walk.group[u] == stamp else paths.finish_s[u]
        if walk.device[u] != d:
            arrival_s += move_seconds(problem, r, walk.device[u], d)
        start_s = max(start_s, arrival_s)
    i = _first_after(paths, d, start_s, True) - 1
    if i >= paths.row_ptr[d] and walk.group[paths.row[i]] != stamp:
        start_s = max(start_s, paths.finish_s[paths.row[i]])
    return start_s


@compiled
def _behind_s(problem, walk, stamp, v, start_s):
    """Time from the end of op v, which starts at ``start_s``, to the end of all ops that follow."""
    paths, d, behind_s = walk.paths, walk.device[v], 0.0
    i, end = _first_after(paths, d, start_s, False), paths.row_ptr[d + 1]
    while i < end and walk.group[paths.row[i]] == stamp:
        i += 1
    if i < end:
        behind_s = paths.tail_s[paths.row[i]]
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            u = problem.consumers[e]
            if walk.group[u] != stamp:
                behind_s = max(behind_s, _reader_s(problem, walk.device, paths, r, d, u))
    return behind_s


@compiled
def _reader_s(problem, device_V, paths, r, d, u):
    """Time from when device d has region r to the end of all that follows its reader u."""
    if device_V[u] == d:
        return paths.tail_s[u]
    return paths.tail_s[u] + move_seconds(problem, r, d, device_V[u])


@compiled
def _first_after(paths, d, start_s, strictly):
    """Where in the row of device d the ops begin that start after a time, or at it."""
    low, high = paths.row_ptr[d], paths.row_ptr[d + 1]
    while low < high:
        middle = (low + high) // 2
        at_s = paths.start_s[paths.row[middle]]
        if at_s < start_s or (strictly and at_s == start_s):
            low = middle + 1
        else:
            high = middle
    return low
