"""Compiled: list scheduling step by step, by the rules of list_scheduling.py.

Dimensions: B runs, V ops, D devices. Indices: b run, u and v ops, r region, d device, i position in
a list; partial: the schedule so far (list_scheduling.PartialSchedule).
"""

import numpy as np

from doppler.baselines.free_memory_kernels import (
    bring_inputs,
    overflow_bytes,
    release_read_regions,
    reset_free_memory,
    take_memory,
)
from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform
from doppler.support.compiled.heap import heap_pop, heap_push


@compiled
def schedule_list_batch(problem, partial, key_BV, home_BV, insertion, seeds_B, decisions):
    """Run list scheduling once for each seed, see list_scheduling.schedule_ops.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        key_BV: keys of the ops in each run, small first.
        home_BV: preferred devices, -1 where the op is free.
        insertion: whether ops may go into gaps, by their end; else they go behind, by their start.
        seeds_B: of the random ties of each run.
        decisions: ListDecisions, filled in.
    """
    for b in range(len(seeds_B)):
        size, num_released = 0, begin(problem, partial, b)
        for step in range(len(partial.ops)):
            size = queue_released(partial, key_BV[b], size, num_released)
            v = heap_pop(partial.candidates, 0, size)
            size -= 1
            d = best_device(problem, partial, v, home_BV[b, v], insertion, seeds_B[b], step)
            num_released = schedule(problem, partial, v, d, insertion, b, step, decisions)


@compiled
def begin(problem, partial, run):
    """Empty the schedule for a run.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        run: its number; in every other one regions keep their memory.

    Returns:
        How many ops are released.
    """
    num_released = 0
    partial.home[:] = -1
    partial.booked[:] = 0.0
    for d in range(len(partial.devices)):
        partial.devices[d].first = -1
        partial.devices[d].last = -1
        partial.devices[d].gap = -1
    for v in range(len(partial.ops)):
        partial.ops[v].pending = problem.read_ptr[v + 1] - problem.read_ptr[v]
        for d in range(len(partial.devices)):
            partial.ready[v, d] = 0.0
        if partial.ops[v].pending == 0:
            partial.released[num_released] = v
            num_released += 1
    if partial.memory.limited or partial.near:
        reset_free_memory(problem, partial.memory, run % 2 == 0)
    return num_released


@compiled
def queue_released(partial, key_V, size, num_released):
    """Add the released ops to a heap of ``size`` candidates; return its new size."""
    for i in range(num_released):
        v = partial.released[i]
        heap_push(partial.candidates, 0, size, key_V[v], v)
        size += 1
    return size


@compiled
def earliest(problem, partial, v, d, insertion):
    """When op v can start on device d.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        v: op.
        d: device.
        insertion: whether gaps count.

    Returns:
        The start in seconds, and the op there that it would precede, -1 if none.
    """
    ready, takes_time = partial.ready[v, d], problem.op_seconds[v, d] > 0.0
    first, last = partial.devices[d].first, partial.devices[d].last
    start, following = ready, -1
    # An op that takes no time also fits between two ops without a gap.
    u = partial.devices[d].gap if takes_time else last
    if insertion and not takes_time and last >= 0 and ready <= partial.ops[first].start:
        return ready, first
    if last >= 0:
        start = max(ready, partial.ops[last].finish)
    # Gaps are tried from the last to the first; those that end before `ready` cannot be used.
    while insertion and u >= 0 and partial.ops[u].start >= ready:
        before = partial.ops[u].before
        opens = ready
        if before >= 0:
            opens = max(ready, partial.ops[before].finish)
        if opens + problem.op_seconds[v, d] <= partial.ops[u].start + partial.tie_s:
            start, following = opens, u
        u = partial.ops[u].gap if takes_time else partial.ops[u].before
    return start, following


@compiled
def lacking_bytes(problem, partial, v, d):
    """By how much device d would overflow with op v on it; see list_scheduling."""
    if not partial.memory.limited:
        return 0.0
    others = partial.other_inputs[v] if partial.home[problem.group[v]] < 0 else 0.0
    return overflow_bytes(problem, partial.memory, v, d, others)


@compiled
def may_run(problem, partial, v, d):
    """Whether op v may run on device d: the device of its group, if the group has one."""
    home = partial.home[problem.group[v]]
    return problem.op_seconds[v, d] < np.inf and (home < 0 or home == d)


@compiled
def best_device(problem, partial, v, home, insertion, seed, step):
    """The home if it can take op v, else the device that overflows least, earliest.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        v: op.
        home: preferred device, -1: none.
        insertion: whether gaps count, and ends in place of starts.
        seed: of the ties.
        step: of the run.
    """
    num_devices, group = len(partial.devices), problem.group[v]
    if partial.home[group] >= 0:
        return partial.home[group]
    if (
        home >= 0
        and problem.op_seconds[v, home] < np.inf
        and lacking_bytes(problem, partial, v, home) == 0.0
    ):
        return home
    if len(problem.members) > 0 and problem.member_ptr[group + 1] - problem.member_ptr[group] > 1:
        return choose_home(
            problem, partial, v, partial.load[v], partial.booked, seed, step * num_devices, 1
        )
    best, tied, least_overflow, best_time = 0, 0, np.inf, np.inf
    for d in range(num_devices):
        if problem.op_seconds[v, d] == np.inf:
            continue
        overflow = lacking_bytes(problem, partial, v, d)
        time, _ = earliest(problem, partial, v, d, insertion)
        if insertion:
            time += problem.op_seconds[v, d] + partial.after[v, d]
        if overflow < least_overflow or (
            overflow == least_overflow and time < best_time - partial.tie_s
        ):
            best, tied, least_overflow, best_time = d, 1, overflow, time
        elif overflow == least_overflow and time <= best_time + partial.tie_s:
            tied += 1
            if uniform(seed, step * num_devices + d) * tied < 1.0:
                best = d
    return best


@compiled
def choose_home(problem, partial, v, load_D, booked_D, seed, draw, turn):
    """Choose the device of a group of ops whose first op is v.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        v: op.
        load_D: seconds of the group on each device.
        booked_D: seconds of the groups that are there.
        seed: of the ties.
        draw: number of the first random draw.
        turn: difference between the draw numbers of two devices.
    """
    best, tied, least_overflow, best_time = 0, 0, np.inf, np.inf
    for d in range(len(partial.devices)):
        if load_D[d] == np.inf:
            continue
        overflow = lacking_bytes(problem, partial, v, d)
        start, _ = earliest(problem, partial, v, d, False)
        finish = max(start, booked_D[d]) + load_D[d]
        if overflow < least_overflow or (
            overflow == least_overflow and finish < best_time - partial.tie_s
        ):
            best, tied, least_overflow, best_time = d, 1, overflow, finish
        elif overflow == least_overflow and finish <= best_time + partial.tie_s:
            tied += 1
            if uniform(seed, draw + turn * d) * tied < 1.0:
                best = d
    return best


@compiled
def schedule(problem, partial, v, d, insertion, b, step, decisions):
    """Schedule op v on device d, and write down the decision.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        v: op.
        d: device.
        insertion: whether gaps count.
        b: run.
        step: of the run.
        decisions: ListDecisions, filled in.

    Returns:
        How many ops are released by it.
    """
    start, following = earliest(problem, partial, v, d, insertion)
    decisions.op[b, step] = v
    decisions.device[b, step] = d
    decisions.start[b, step] = start
    return _commit(problem, partial, v, d, start, following)


@compiled
def _commit(problem, partial, v, d, start, following):
    """Schedule op v on device d before the op ``following``; returns how many ops it releases."""
    finish = start + problem.op_seconds[v, d]
    partial.ops[v].start = start
    partial.ops[v].finish = finish
    partial.ops[v].device = d
    if following < 0:
        partial.ops[v].before = partial.devices[d].last
        partial.devices[d].last = v
        partial.ops[v].gap = partial.devices[d].gap
        if _has_gap(partial, v, d):
            partial.devices[d].gap = v
    else:
        had_gap = _has_gap(partial, following, d)
        partial.ops[v].before = partial.ops[following].before
        partial.ops[following].before = v
        if had_gap:
            _split_gap(partial, v, d, following)
    if partial.ops[v].before < 0:
        partial.devices[d].first = v
    if partial.home[problem.group[v]] < 0:
        partial.home[problem.group[v]] = d
        partial.booked[d] += partial.load[v, d]
        if partial.memory.limited and len(problem.members) > 0:
            for i in range(
                problem.member_ptr[problem.group[v]], problem.member_ptr[problem.group[v] + 1]
            ):
                bring_inputs(problem, partial.memory, problem.members[i], d)
    if partial.memory.limited or partial.near:
        take_memory(problem, partial.memory, v, d)
        release_read_regions(problem, partial.memory, v)
    num_released = 0
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            consumer = problem.consumers[i]
            for other in range(len(partial.devices)):
                arrival = finish
                if other != d:
                    arrival += move_seconds(problem, r, d, other)
                partial.ready[consumer, other] = max(partial.ready[consumer, other], arrival)
            partial.ops[consumer].pending -= 1
            if partial.ops[consumer].pending == 0:
                partial.released[num_released] = consumer
                num_released += 1
    return num_released


@compiled
def _has_gap(partial, v, d):
    """Whether the gap before op v is long enough for any op that takes time, if it is ready."""
    before = partial.ops[v].before
    opens = partial.ops[before].finish if before >= 0 else 0.0
    return opens + partial.shortest[d] <= partial.ops[v].start + partial.tie_s


@compiled
def _split_gap(partial, v, d, following):
    """Update the gaps after op v has taken part of the one before the op ``following``."""
    rest = partial.ops[following].gap
    if _has_gap(partial, v, d):
        partial.ops[v].gap = rest
        rest = v
    if _has_gap(partial, following, d):
        partial.ops[following].gap = rest
    elif partial.devices[d].gap == following:
        partial.devices[d].gap = rest
    else:
        u = partial.devices[d].gap
        while partial.ops[u].gap != following:
            u = partial.ops[u].gap
        partial.ops[u].gap = rest
