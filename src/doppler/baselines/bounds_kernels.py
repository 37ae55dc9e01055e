"""Compiled: heads of ops, and Jackson's preemptive schedule, for the lower bounds of bounds.py.

Dimensions: V ops, D devices, P pairs of ops with an edge, N ops before one op. Indices: u and v
ops, d and other devices, i position among the N ops, k rank.
"""

import numpy as np

from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import heap_pop, heap_push


@compiled
def fill_heads(problem, streams, order_V, ptr, before_P, pair_P, scratch, head_VD):
    """Fill in the heads of all ops, see bounds.heads_and_tails.

    Args:
        problem: ProblemArrays with pairs in place of regions, see bounds.pairs.
        streams: ops that a device runs at a time, float.
        order_V: ops, those that others wait for first.
        ptr: [V + 1] op v waits for ``before_P[ptr[v]:ptr[v + 1]]``.
        before_P: ops.
        pair_P: number of each pair.
        scratch: bounds._Scratch.
        head_VD: seconds, filled in.
    """
    num_devices = problem.op_seconds.shape[1]
    for v in order_V:
        begin, num = ptr[v], ptr[v + 1] - ptr[v]
        for d in range(num_devices):
            if problem.op_seconds[v, d] == np.inf:
                head_VD[v, d] = np.inf
                continue
            for i in range(num):
                u = before_P[begin + i]
                scratch.remote_s[i] = np.inf
                for other in range(num_devices):
                    if other != d and problem.group[u] != problem.group[v]:
                        move = move_seconds(problem, pair_P[begin + i], other, d)
                        arrival = head_VD[u, other] + problem.op_seconds[u, other] + move
                        scratch.remote_s[i] = min(scratch.remote_s[i], arrival)
                heap_push(scratch.heap, 0, i, -scratch.remote_s[i], i)
            for k in range(num):
                i = heap_pop(scratch.heap, 0, num - k)
                scratch.rank[i] = k
                scratch.arrival_s[k] = scratch.remote_s[i]
            for i in range(num):
                heap_push(scratch.heap, 0, i, -head_VD[before_P[begin + i], d], i)
            for k in range(num):
                scratch.by_release[k] = heap_pop(scratch.heap, 0, num - k)
            # The more are local, the later they end and the earlier the others have arrived: the
            # fewest local ones that end no earlier than that, or one less, are best.
            low, high = 0, num
            while low < high:
                middle = (low + high) // 2
                end = _local_end(
                    problem, streams, before_P, begin, num, d, middle, scratch, head_VD
                )
                if end < scratch.arrival_s[middle]:
                    low = middle + 1
                else:
                    high = middle
            head_VD[v, d] = _local_end(
                problem, streams, before_P, begin, num, d, low, scratch, head_VD
            )
            if low > 0:
                head_VD[v, d] = min(head_VD[v, d], scratch.arrival_s[low - 1])


@compiled
def _local_end(problem, streams, before_P, begin, num, d, num_local, scratch, head_VD):
    """When the first num_local ops by rank have all run on device d, at the earliest."""
    end, work = 0.0, 0.0
    for k in range(num):
        i = scratch.by_release[k]
        if scratch.rank[i] < num_local:
            u = before_P[begin + i]
            work += problem.op_seconds[u, d] / streams
            end = max(end, head_VD[u, d] + max(work, problem.op_seconds[u, d]))
    return end


@compiled
def jackson_makespan(order_V, head_V, left_V, tail_V, heap):
    """Makespan of Jackson's preemptive schedule, see bounds.window_bound.

    Args:
        order_V: ops by their head.
        head_V: seconds.
        left_V: seconds of work; used up.
        tail_V: seconds.
        heap: ENTRY [V] scratch.
    """
    num_ops, next_one, waiting = len(order_V), 0, 0
    now, end = 0.0, 0.0
    while next_one < num_ops or waiting > 0:
        if waiting == 0:
            now = max(now, head_V[order_V[next_one]])
        while next_one < num_ops and head_V[order_V[next_one]] <= now:
            v = order_V[next_one]
            heap_push(heap, 0, waiting, -tail_V[v], v)
            waiting, next_one = waiting + 1, next_one + 1
        v = heap[0].task
        release = head_V[order_V[next_one]] if next_one < num_ops else np.inf
        if now + left_V[v] <= release:
            now += left_V[v]
            end = max(end, now + tail_V[v])
            heap_pop(heap, 0, waiting)
            waiting -= 1
        else:
            left_V[v] -= release - now
            now = release
    return end
