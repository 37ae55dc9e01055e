"""What the critical path heuristic would choose in an episode: the op, and the device.

Source: Kwok and Ahmad, ACM Computing Surveys 1999, as used by DOPPLER (Yao et al., ICLR 2026):
the candidate with the largest b_level, the device on which it can start earliest.
"""

import numpy as np

from doppler.compiled import compiled
from doppler.episode.process import NUM_CANDIDATES, earliest_start


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
def bring_largest_b_levels_forward(w, e, num):
    """Move the ``num`` candidates of the largest b_levels to the front of their list, in any order.

    Ties go to the smaller op. Source: quickselect, Hoare, "Algorithm 65: Find", 1961.
    """
    low, high = 0, e.status[NUM_CANDIDATES] - 1
    while low < high:
        pivot = e.candidates[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while _comes_before(w, e.candidates[i], pivot):
                i += 1
            while _comes_before(w, pivot, e.candidates[j]):
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
def _comes_before(w, a, b):
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
