"""Earliest task first behind queues: devices are chosen by where transfers of a link wait.

Shape suffixes: B runs, V ops.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import MOST_OPS, ListDecisions, ListScheduler, make_decisions
from doppler.baselines.earliest import (
    UNSURE,
    first_candidate,
    list_again,
    list_released,
    make_ready_ops,
    nothing_ready,
    orders_and_ranks,
    take_candidate,
)
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import (
    begin,
    lacking_bytes,
    make_schedule,
    may_run,
    queue_keys,
    schedule,
    tie_seconds,
)
from doppler.problem import Problem
from doppler.simulator.links import empty_queues, make_queues, place_in_queues, try_start
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class QueuedETF(ListScheduler):
    """Of all candidates, take the one that can start earliest to the device on which it ends first.

    Starts and ends are those behind queues: transfers over a link follow each other, and a region
    goes to a device once (simulator/links.py). Of candidates that can start together the one with
    the largest b_level goes first. Further ties are broken at random; the best of ``evaluations``
    runs on the system counts. The order in which ops were taken is their priority.

    Source: ETF (Hwang, Chow, Anger, Lee, 1989) takes the op; list scheduling with contention,
    Sinnen and Sousa, "Communication Contention in Task Scheduling", IEEE TPDS 2005, its device.
    The pair of both is ours.
    """

    name: ClassVar[str] = "etf_queued"
    most_ops: ClassVar[int] = MOST_OPS

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        """See ListScheduler."""
        decisions, level_V = make_decisions(num, problem), b_levels(problem)
        partial = make_schedule(problem, tie_seconds(level_V))
        key_BV = queue_keys(level_V, num, rng)
        _schedule_batch(
            problem.arrays,
            partial,
            make_queues(problem.arrays),
            make_ready_ops(problem, partial),
            key_BV,
            *orders_and_ranks(key_BV),
            rng.integers(0, 2**62, size=num),
            decisions,
        )
        return decisions


@compiled
def _schedule_batch(p, s, q, ready, key_BV, order_BV, rank_BV, seeds_B, decisions):
    num_ops, num_devices = p.op_seconds.shape
    for b in range(len(seeds_B)):
        empty_queues(q)
        nothing_ready(ready)
        size, num_released = 0, begin(p, s, b)
        for step in range(num_ops):
            size = list_released(_start, p, s, q, ready, rank_BV[b], size, num_released)
            for d in range(num_devices):
                ready.free[d] = q.device_free[d]
            index = first_candidate(_start, p, s, q, ready, order_BV[b])
            if index == UNSURE:
                index = _first_to_start(p, s, q, key_BV[b], ready.candidates, size)
            v = take_candidate(s, ready, index, size)
            size -= 1
            d = _first_to_end(p, s, q, v, seeds_B[b], step * num_devices)
            num_sent = _list_sent(p, q, ready, v, d)
            start = place_in_queues(p, q, v, d)
            list_again(_start, p, s, q, ready, rank_BV[b], num_sent, d)
            num_released = schedule(p, s, v, d, False, b, step, decisions)
            decisions.start[b, step] = start


@compiled
def _list_sent(p, q, ready, v, d):
    """Note the regions that op v would be the first to bring to device d; returns how many."""
    num = 0
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        if q.device[p.region_src[r]] != d and q.arrival[r, d] < 0.0:
            ready.sent[num] = r
            num += 1
    return num


@compiled
def _start(p, s, q, v, d):
    return try_start(p, q, v, d)


@compiled
def _first_to_start(p, s, q, key_V, candidates, size):
    """The index of the candidate that can start earliest on any device; of these the first key."""
    best, time = 0, np.inf
    for i in range(size):
        v, start = candidates[i], np.inf
        for d in range(len(s.devices)):
            # What cannot beat the best so far need not be asked when its data would be there.
            if may_run(p, s, v, d) and q.device_free[d] <= time + s.tie_s:
                start = min(start, try_start(p, q, v, d))
        together = start <= time + s.tie_s
        if start < time - s.tie_s or (together and key_V[v] < key_V[candidates[best]]):
            best, time = i, min(start, time)
    return best


@compiled
def _first_to_end(p, s, q, v, seed, draw):
    """The device that overflows least, and on which op v ends first."""
    best, tied, least, time = 0, 0, np.inf, np.inf
    for d in range(len(s.devices)):
        if not may_run(p, s, v, d):
            continue
        over = lacking_bytes(p, s, v, d)
        end = try_start(p, q, v, d) + p.op_seconds[v, d]
        if over < least or (over == least and end < time - s.tie_s):
            best, tied, least, time = d, 1, over, end
        elif over == least and end <= time + s.tie_s:
            tied += 1
            if uniform(seed, draw + d) * tied < 1.0:
                best = d
    return best
