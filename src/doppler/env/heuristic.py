"""What the critical path heuristic would choose in an episode: the op, and the device.

Source: Kwok and Ahmad, ACM Computing Surveys 1999, as used by DOPPLER (Yao et al., ICLR 2026):
the candidate with the largest b_level, the device on which it can start earliest.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.env.features import open_devices
from doppler.env.problem_view import LARGE, ProblemView
from doppler.env.process import (
    NUM_CANDIDATES,
    NUM_RELEASED,
    STEP,
    earliest_start,
    make_episode,
    place,
    reset,
)
from doppler.env.ready import bring_forward
from doppler.support.compiled import compiled


@compiled
def largest_b_levels_first(w, e):
    """Move the candidates of the largest b_level to the front of their list; returns how many."""
    num, largest, tied = e.status[NUM_CANDIDATES], 0.0, 0
    for i in range(num):
        largest = max(largest, w.b_level[e.candidates[i]])
    for i in range(num):
        v = e.candidates[i]
        if w.b_level[v] >= largest - w.tie_s:
            e.candidates[i] = e.candidates[tied]
            e.candidates[tied] = v
            tied += 1
    return tied


@compiled
def bring_earliest_starts_forward(w, e, num):
    """Move the ``num`` candidates that can start earliest to the front of their list, in any order.

    Starts are those without contention. Ties go to the larger b_level, then to the smaller op.
    Source: quickselect, Hoare, "Algorithm 65: Find", 1961; in large graphs queues (ready.py).
    """
    if len(e.ops) > LARGE:
        bring_forward(w, e, e.status[STEP] + 1, e.status[NUM_RELEASED], num)
        return
    low, high = 0, e.status[NUM_CANDIDATES] - 1
    for i in range(high + 1):
        e.key[e.candidates[i]] = _earliest_start_anywhere(w, e, e.candidates[i])
    while low < high:
        pivot = e.candidates[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while _comes_before(w, e, e.candidates[i], pivot):
                i += 1
            while _comes_before(w, e, pivot, e.candidates[j]):
                j -= 1
            if i <= j:
                v = e.candidates[i]
                e.candidates[i] = e.candidates[j]
                e.candidates[j] = v
                i += 1
                j -= 1
        if num <= j:
            high = j
        elif num >= i:
            low = i
        else:
            break


@compiled
def _earliest_start_anywhere(w, e, v):
    home, start = e.home[w.group[v]], np.inf
    for d in range(len(e.devices)):
        if w.able[v, d] if home < 0 else d == home:
            start = min(start, earliest_start(e, v, d))
    return start


@compiled
def _comes_before(w, e, a, b):
    if e.key[a] != e.key[b]:
        return e.key[a] < e.key[b]
    return w.b_level[a] > w.b_level[b] or (w.b_level[a] == w.b_level[b] and a < b)


@compiled
def close_later_starts(w, e, v, taken, mask):
    """Of the devices that are open in ``mask`` [D], leave those on which op v can start earliest.

    taken: a device that is taken in any case: if it is none of these, nothing is closed; -1: none.
    """
    earliest = np.inf
    for d in range(len(mask)):
        if mask[d] != 0:
            earliest = min(earliest, earliest_start(e, v, d))
    latest = earliest + w.tie_s
    if taken >= 0 and earliest_start(e, v, taken) > latest:
        return
    for d in range(len(mask)):
        if earliest_start(e, v, d) > latest:
            mask[d] = 0


def advice(
    view: ProblemView,
    op_BV: NDArray[np.int64],
    device_BV: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the heuristic would choose at every state of these episodes, ties at random.

    Args:
        view: of the problem.
        op_BV: the op that each step took instead.
        device_BV: the device that it went to.
        rng: of the ties.

    Returns:
        The op of each step, and the device for the op that the step took, [B, V] both; of empty
        devices that nothing tells apart the first.
    """
    draw_BV2, arrays = rng.random((*op_BV.shape, 2)), view.problem.arrays
    advised_op_BV, advised_device_BV = np.empty_like(op_BV), np.empty_like(device_BV)
    advised = advised_op_BV, advised_device_BV
    episode = make_episode(arrays, view.arrays)
    mask_D = np.zeros(view.problem.num_devices, np.int64)
    _advise(arrays, view.arrays, episode, mask_D, draw_BV2, (op_BV, device_BV), advised)
    return advised


@compiled
def _advise(p, w, e, mask, draw_BV2, taken, advised):
    op_BV, device_BV = taken
    for b in range(len(op_BV)):
        reset(p, e)
        for t in range(len(e.ops)):
            tied = largest_b_levels_first(w, e)
            advised[0][b, t] = e.candidates[int(draw_BV2[b, t, 0] * tied)]
            v, index = op_BV[b, t], 0
            while e.candidates[index] != v:
                index += 1
            open_devices(p, w, e, v, mask)
            close_later_starts(w, e, v, -1, mask)
            left = int(draw_BV2[b, t, 1] * mask.sum())
            for d in range(len(mask)):
                if mask[d] != 0:
                    if left == 0:
                        advised[1][b, t] = d
                    left -= 1
            place(p, w, e, index, device_BV[b, t])
