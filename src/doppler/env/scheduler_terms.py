"""What a list scheduler would look at, compiled: terms of the logits of both heads.

Seconds are in units of the mean op, so that they mean the same on graphs of any size, and are
differences to the best, so that what is best is 0. The fields of the tuples are the terms in the
order of their columns. Shape suffixes: N candidates, D devices, X terms of the list scheduler.

Source: earliest task first (Hwang, Chow, Anger, Lee, 1989) and list scheduling with contention
(Sinnen and Sousa, 2005), see baselines/etf_queued.py; that a policy learns what to add to them is
in the spirit of residual policy learning, Silver et al., 2018.
"""

from typing import NamedTuple

import numpy as np

from doppler.env.process import queued_start
from doppler.support.compiled import compiled


class SelSchedulerTerms(NamedTuple):
    """Of a candidate.

    start: behind queues, on its best device. b_level: how far below the largest; a logarithm, for
    it is to break ties.
    """

    start: float
    b_level: float


class PlcSchedulerTerms(NamedTuple):
    """Of a device. finish: of the op behind queues. to_move: transfers that another spares."""

    finish: float
    to_move: float


# What new weights begin with: a policy that is a good scheduler.
SEL_INITIAL_WEIGHTS = SelSchedulerTerms(start=-3.0, b_level=-0.1)
PLC_INITIAL_WEIGHTS = PlcSchedulerTerms(finish=-3.0, to_move=0.0)
NUM_SEL_TERMS, NUM_PLC_TERMS = len(SEL_INITIAL_WEIGHTS), len(PLC_INITIAL_WEIGHTS)
# Beyond so many mean ops all is alike.
_MOST = 100.0


@compiled
def sel_scheduler_terms(p, w, e, count, out):
    """Fill ``out`` [N, X] with the terms of the first ``count`` candidates."""
    first, highest = np.inf, 0.0
    for i in range(count):
        v = e.candidates[i]
        e.key[v] = _queued_start(p, w, e, v)
        first = min(first, e.key[v])
        highest = max(highest, w.b_level[v])
    for i in range(count):
        v = e.candidates[i]
        out[i, 0] = w.start_counts * min((e.key[v] - first) / w.mean_op_s, _MOST)
        out[i, 1] = w.level_counts * np.log1p((highest - w.b_level[v]) / w.mean_op_s)


@compiled
def _queued_start(p, w, e, v):
    """When v can start behind queues, on the best of the devices that it may go to."""
    home, start = e.home[w.group[v]], np.inf
    for d in range(len(e.devices)):
        may_go = w.able[v, d] if home < 0 else d == home
        if may_go and e.queues.device_free[d] < start:
            start = min(start, queued_start(p, e, v, d))
    return start


@compiled
def plc_scheduler_terms(p, w, e, v, mask, out):
    """Fill ``out`` [D, X] with the terms of the devices that ``mask`` [D] leaves open for op v.

    The queues hold when v would start on each device, as features.device_features leaves them.
    """
    best, largest = np.inf, 0.0
    for d in range(len(mask)):
        if mask[d] != 0:
            best = min(best, e.queues.start[d] + p.op_seconds[v, d])
            largest = max(largest, e.on_device[v, d].incoming)
    for d in range(len(mask)):
        out[d, 0] = 0.0
        out[d, 1] = 0.0
        if mask[d] != 0:
            late = e.queues.start[d] + p.op_seconds[v, d] - best
            out[d, 0] = min(late / w.mean_op_s, _MOST)
            out[d, 1] = min((largest - e.on_device[v, d].incoming) / w.mean_op_s, _MOST)
