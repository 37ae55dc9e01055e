"""Compiled: the schedules of earliest task first behind queues.

Dimensions: B runs, V ops, D devices. Indices: b run, v op, r region, d device, i position in a
list; partial: the schedule so far (list_scheduling.PartialSchedule).
"""

import numpy as np

from doppler.baselines.list_scheduling_kernels import begin, lacking_bytes, may_run, schedule
from doppler.baselines.ready_ops_kernels import (
    UNSURE,
    empty_ready_ops,
    first_candidate,
    list_again,
    list_released,
    take_candidate,
)
from doppler.simulator.link_kernels import empty_queues, place_in_queues, try_start
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform


@compiled
def schedule_queued_etf_batch(
    problem, partial, queues, ready, key_BV, order_BV, rank_BV, seeds_B, decisions
):
    """Run earliest task first behind queues once for each seed.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        queues: of links, link_kernels.Queues.
        ready: ready ops, ready_ops_kernels.ReadyOps.
        key_BV: keys of the ops in each run, small first.
        order_BV: ops of each run by key.
        rank_BV: place of each op there.
        seeds_B: of the random ties of each run.
        decisions: ListDecisions, filled in.
    """
    num_ops, num_devices = problem.op_seconds.shape
    for b in range(len(seeds_B)):
        empty_queues(queues)
        empty_ready_ops(ready)
        size, num_released = 0, begin(problem, partial, b)
        for step in range(num_ops):
            size = list_released(
                _start, problem, partial, queues, ready, rank_BV[b], size, num_released
            )
            for d in range(num_devices):
                ready.free[d] = queues.device_free[d]
            index = first_candidate(_start, problem, partial, queues, ready, order_BV[b])
            if index == UNSURE:
                index = _first_to_start(problem, partial, queues, key_BV[b], ready.candidates, size)
            v = take_candidate(partial, ready, index, size)
            size -= 1
            d = _first_to_end(problem, partial, queues, v, seeds_B[b], step * num_devices)
            num_sent = _list_sent(problem, queues, ready, v, d)
            start = place_in_queues(problem, queues, v, d)
            list_again(_start, problem, partial, queues, ready, rank_BV[b], num_sent, d)
            num_released = schedule(problem, partial, v, d, False, b, step, decisions)
            decisions.start[b, step] = start


@compiled
def _list_sent(problem, queues, ready, v, d):
    """List the regions that op v would be the first to bring to device d; return their number."""
    num = 0
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        r = problem.reads[i]
        if queues.device[problem.region_src[r]] != d and queues.arrival[r, d] < 0.0:
            ready.sent[num] = r
            num += 1
    return num


@compiled
def _start(problem, partial, queues, v, d):
    return try_start(problem, queues, v, d)


@compiled
def _first_to_start(problem, partial, queues, key_V, candidates, size):
    """The index of the candidate that can start first on any device; ties by key."""
    best, best_time = 0, np.inf
    for i in range(size):
        v, start = candidates[i], np.inf
        for d in range(len(partial.devices)):
            # Skip the costly arrival time of candidates that cannot beat the best so far.
            if (
                may_run(problem, partial, v, d)
                and queues.device_free[d] <= best_time + partial.tie_s
            ):
                start = min(start, try_start(problem, queues, v, d))
        together = start <= best_time + partial.tie_s
        if start < best_time - partial.tie_s or (together and key_V[v] < key_V[candidates[best]]):
            best, best_time = i, min(start, best_time)
    return best


@compiled
def _first_to_end(problem, partial, queues, v, seed, draw):
    """The device that overflows least, and on which op v ends first."""
    best, tied, least_overflow, best_time = 0, 0, np.inf, np.inf
    for d in range(len(partial.devices)):
        if not may_run(problem, partial, v, d):
            continue
        overflow = lacking_bytes(problem, partial, v, d)
        end = try_start(problem, queues, v, d) + problem.op_seconds[v, d]
        if overflow < least_overflow or (
            overflow == least_overflow and end < best_time - partial.tie_s
        ):
            best, tied, least_overflow, best_time = d, 1, overflow, end
        elif overflow == least_overflow and end <= best_time + partial.tie_s:
            tied += 1
            if uniform(seed, draw + d) * tied < 1.0:
                best = d
    return best
