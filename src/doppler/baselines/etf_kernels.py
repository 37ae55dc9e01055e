"""Compiled: the schedules of earliest task first.

Dimensions: B runs, V ops, D devices. Indices: b run, v op, r region, d device, i position in a
list; partial: the schedule so far (list_scheduling.PartialSchedule).
"""

import numpy as np

from doppler.baselines.list_scheduling_kernels import (
    begin,
    earliest,
    lacking_bytes,
    may_run,
    schedule,
)
from doppler.baselines.ready_ops_kernels import (
    UNSURE,
    empty_ready_ops,
    first_candidate,
    list_released,
    take_candidate,
)
from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform


@compiled
def schedule_etf_batch(problem, partial, ready, key_BV, order_BV, rank_BV, seeds_B, decisions):
    """Run earliest task first once for each seed.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        ready: ready ops, ready_ops_kernels.ReadyOps.
        key_BV: keys of the ops in each run, small first.
        order_BV: ops of each run by key.
        rank_BV: place of each op there.
        seeds_B: of the random ties of each run.
        decisions: ListDecisions, filled in.
    """
    num_ops, num_devices = problem.op_seconds.shape
    for b in range(len(seeds_B)):
        empty_ready_ops(ready)
        size, num_released = 0, begin(problem, partial, b)
        for step in range(num_ops):
            size = list_released(
                _start, problem, partial, partial, ready, rank_BV[b], size, num_released
            )
            for d in range(num_devices):
                last = partial.devices[d].last
                ready.free[d] = partial.ops[last].finish if last >= 0 else 0.0
            index = first_candidate(_start, problem, partial, partial, ready, order_BV[b])
            if index == UNSURE:
                index = _first_op(problem, partial, key_BV[b], ready.candidates, size)
            v = take_candidate(partial, ready, index, size)
            size -= 1
            d = _first_device(problem, partial, v, seeds_B[b], step * num_devices)
            num_released = schedule(problem, partial, v, d, False, b, step, decisions)


@compiled
def _start(problem, partial, queues, v, d):
    return earliest(problem, partial, v, d, False)[0]


@compiled
def _first_op(problem, partial, key_V, candidates, size):
    """The index of the candidate that can start earliest on any device."""
    best, best_time, least_incoming = 0, np.inf, np.inf
    for i in range(size):
        v = candidates[i]
        for d in range(len(partial.devices)):
            if not may_run(problem, partial, v, d):
                continue
            start = _start(problem, partial, partial, v, d)
            if start > best_time + partial.tie_s:
                continue
            incoming = _incoming_seconds(problem, partial, v, d)
            as_near = (
                incoming <= least_incoming + partial.tie_s and key_V[v] < key_V[candidates[best]]
            )
            if (
                start < best_time - partial.tie_s
                or incoming < least_incoming - partial.tie_s
                or as_near
            ):
                best, best_time, least_incoming = i, start, incoming
    return best


@compiled
def _first_device(problem, partial, v, seed, draw):
    """The device that overflows least, and on which op v starts earliest, ties at random."""
    best, tied, least_overflow, best_time, least_incoming = 0, 0, np.inf, np.inf, np.inf
    for d in range(len(partial.devices)):
        if not may_run(problem, partial, v, d):
            continue
        start = _start(problem, partial, partial, v, d)
        if least_overflow == 0.0 and start > best_time + partial.tie_s:
            continue
        overflow = lacking_bytes(problem, partial, v, d)
        incoming = _incoming_seconds(problem, partial, v, d)
        together = start <= best_time + partial.tie_s
        as_near = incoming <= least_incoming + partial.tie_s
        sooner = start < best_time - partial.tie_s or (
            together and incoming < least_incoming - partial.tie_s
        )
        if overflow < least_overflow or (overflow == least_overflow and sooner):
            best, tied, least_overflow, best_time, least_incoming = d, 1, overflow, start, incoming
        elif overflow == least_overflow and together and as_near:
            tied += 1
            if uniform(seed, draw + d) * tied < 1.0:
                best = d
    return best


@compiled
def _incoming_seconds(problem, partial, v, d):
    """Seconds of the transfers that op v on device d causes; 0 where they break no ties."""
    total = 0.0
    if partial.near:
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            r = problem.reads[i]
            if not partial.memory.has_region[r, d]:
                source = partial.ops[problem.region_src[r]].device
                total += move_seconds(problem, r, source, d)
    return total
