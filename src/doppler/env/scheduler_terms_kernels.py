"""Compiled: the list scheduler's terms of candidates and of devices, see scheduler_terms.py.

Dimensions: N candidates, D devices, X terms. Indices: v op, d device, i position among candidates.
"""

import numpy as np

from doppler.env.episode_kernels import queued_start
from doppler.support.compiled import compiled

# Differences beyond this many mean ops count as equal.
_MAX_TERM = 100.0


@compiled
def sel_scheduler_terms(problem, view, episode, count, out):
    """Fill in the terms of the first candidates.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        count: number of candidates.
        out: [N, X].
    """
    first, highest = np.inf, 0.0
    for i in range(count):
        v = episode.candidates[i]
        episode.key[v] = _queued_start(problem, view, episode, v)
        first = min(first, episode.key[v])
        highest = max(highest, view.b_level[v])
    for i in range(count):
        v = episode.candidates[i]
        out[i, 0] = view.start_counts * min((episode.key[v] - first) / view.mean_op_s, _MAX_TERM)
        out[i, 1] = view.level_counts * np.log1p((highest - view.b_level[v]) / view.mean_op_s)


@compiled
def _queued_start(problem, view, episode, v):
    """When v can start, with queues of transfers, on the best device that it may go to."""
    home, start = episode.home[view.group[v]], np.inf
    for d in range(len(episode.devices)):
        may_go = view.able[v, d] if home < 0 else d == home
        if may_go and episode.queues.device_free[d] < start:
            start = min(start, queued_start(problem, episode, v, d))
    return start


@compiled
def plc_scheduler_terms(problem, view, episode, v, mask, out):
    """Fill in the terms of the open devices for op v; 0 for the others.

    The queues must hold when v would start on each device, as features_kernels.device_features
    leaves them.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        mask: [D] int64, 1 if a device is open.
        out: [D, X].
    """
    best, largest = np.inf, 0.0
    for d in range(len(mask)):
        if mask[d] != 0:
            best = min(best, episode.queues.start[d] + problem.op_seconds[v, d])
            largest = max(largest, episode.on_device[v, d].incoming)
    for d in range(len(mask)):
        out[d, 0] = 0.0
        out[d, 1] = 0.0
        if mask[d] != 0:
            late = episode.queues.start[d] + problem.op_seconds[v, d] - best
            out[d, 0] = min(late / view.mean_op_s, _MAX_TERM)
            out[d, 1] = min(
                (largest - episode.on_device[v, d].incoming) / view.mean_op_s, _MAX_TERM
            )
