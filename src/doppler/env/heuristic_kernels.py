"""Compiled: the choices of the critical path heuristic in an episode.

Dimensions: B episodes, V ops and steps, D devices. Indices: b episode, t step, v, a and b ops, d
device, i and j positions among the candidates.

Source: as heuristic.py.
"""

import numpy as np

from doppler.env.episode import NUM_CANDIDATES, NUM_RELEASED, STEP
from doppler.env.episode_kernels import earliest_start, place, reset
from doppler.env.features_kernels import open_devices
from doppler.env.problem_view import LARGE
from doppler.env.ready_kernels import bring_forward
from doppler.support.compiled import compiled


@compiled
def largest_b_levels_first(view, episode):
    """Move the candidates of the largest b_level to the front of their list.

    Args:
        view: ViewArrays.
        episode: its state, episode.Episode.

    Returns:
        How many there are.
    """
    num, largest, tied = episode.status[NUM_CANDIDATES], 0.0, 0
    for i in range(num):
        largest = max(largest, view.b_level[episode.candidates[i]])
    for i in range(num):
        v = episode.candidates[i]
        if view.b_level[v] >= largest - view.tie_s:
            episode.candidates[i] = episode.candidates[tied]
            episode.candidates[tied] = v
            tied += 1
    return tied


@compiled
def bring_earliest_starts_forward(view, episode, num):
    """Move the ``num`` candidates that can start earliest to the front of their list, in any order.

    Starts are those without contention. Ties go to the larger b_level, then to the smaller op.
    In large graphs queues find them (ready_kernels.py).

    Source: quickselect, Hoare, "Algorithm 65: Find", 1961.
    """
    if len(episode.ops) > LARGE:
        bring_forward(view, episode, episode.status[STEP] + 1, episode.status[NUM_RELEASED], num)
        return
    low, high = 0, episode.status[NUM_CANDIDATES] - 1
    for i in range(high + 1):
        episode.key[episode.candidates[i]] = _earliest_start_anywhere(
            view, episode, episode.candidates[i]
        )
    while low < high:
        pivot = episode.candidates[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while _comes_before(view, episode, episode.candidates[i], pivot):
                i += 1
            while _comes_before(view, episode, pivot, episode.candidates[j]):
                j -= 1
            if i <= j:
                v = episode.candidates[i]
                episode.candidates[i] = episode.candidates[j]
                episode.candidates[j] = v
                i += 1
                j -= 1
        if num <= j:
            high = j
        elif num >= i:
            low = i
        else:
            break


@compiled
def _earliest_start_anywhere(view, episode, v):
    home, start = episode.home[view.group[v]], np.inf
    for d in range(len(episode.devices)):
        if view.able[v, d] if home < 0 else d == home:
            start = min(start, earliest_start(episode, v, d))
    return start


@compiled
def _comes_before(view, episode, a, b):
    if episode.key[a] != episode.key[b]:
        return episode.key[a] < episode.key[b]
    return view.b_level[a] > view.b_level[b] or (view.b_level[a] == view.b_level[b] and a < b)


@compiled
def close_later_starts(view, episode, v, forced_device, mask):
    """Keep only those open devices on which op v can start earliest.

    Args:
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        forced_device: a device that is taken in any case; if it is not one of those, nothing is
            closed; -1: none.
        mask: [D] int64, 1 if a device is open.
    """
    earliest = np.inf
    for d in range(len(mask)):
        if mask[d] != 0:
            earliest = min(earliest, earliest_start(episode, v, d))
    latest = earliest + view.tie_s
    if forced_device >= 0 and earliest_start(episode, v, forced_device) > latest:
        return
    for d in range(len(mask)):
        if earliest_start(episode, v, d) > latest:
            mask[d] = 0


@compiled
def advise_batch(problem, view, episode, mask, draw_BV2, decisions, advised):
    """Fill in the choices of the heuristic in every state of episodes, see heuristic.advice.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        mask: [D] scratch.
        draw_BV2: uniform draws for ties of ops and of devices.
        decisions: op [B, V] and device [B, V] that the episodes took.
        advised: likewise for the heuristic, filled in.
    """
    op_BV, device_BV = decisions
    for b in range(len(op_BV)):
        reset(problem, episode)
        for t in range(len(episode.ops)):
            tied = largest_b_levels_first(view, episode)
            advised[0][b, t] = episode.candidates[int(draw_BV2[b, t, 0] * tied)]
            v, index = op_BV[b, t], 0
            while episode.candidates[index] != v:
                index += 1
            open_devices(problem, view, episode, v, mask)
            close_later_starts(view, episode, v, -1, mask)
            left = int(draw_BV2[b, t, 1] * mask.sum())
            for d in range(len(mask)):
                if mask[d] != 0:
                    if left == 0:
                        advised[1][b, t] = d
                    left -= 1
            place(problem, view, episode, index, device_BV[b, t])
