"""Compiled: addresses of copies whose stays are known, and the waits that make them safe.

Two copies may share an address where one left before the other came; the later one then waits for
all that used the earlier one. Copies are laid down one after another, each in the lowest gap that
is as tight as any; those for which there was none go first the next time.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.

Source: offline dynamic storage allocation, first and best fit by decreasing size or duration
(Garey and Johnson, "Computers and Intractability", SR2; Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", arXiv 2001.03288).
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING, SLACK
from doppler.extensions.memory.space_kernels import add_wait, freed_by
from doppler.support.compiled import compiled_apart
from doppler.support.compiled.heap import heap_pop, heap_push

_ORDERS = 4
# Times that copies are laid down; pairs of copies that are looked at.
_MAX_ROUNDS, _MAX_PAIRS = 24, 4e6


@compiled_apart
def assign(plan):
    """Addresses and waits on all devices; false, and who is `stuck`, if there are none."""
    plan.counts[0].stuck = NOTHING
    for d in range(len(plan.first)):
        if not _assign_on_device(plan, d):
            return False
        _wait_for_addresses(plan, d)
    return plan.counts[0].failed == 0


@compiled_apart
def _is_there(plan, c, d):
    return (
        plan.copies[c].on == d
        and plan.copies[c].bytes > 0.0
        and plan.copies[c].died != plan.copies[c].born
    )


@compiled_apart
def _assign_on_device(plan, d):
    num = 0
    for c in range(plan.counts[0].copies):
        plan.copies[c].tries = 0
        num += 1 if _is_there(plan, c, d) else 0
    most = min(_MAX_ROUNDS, np.int64(_MAX_PAIRS / (1.0 + num * num)) + 2)
    if _lay_early(plan, d):
        return True
    for k in range(most):
        if _lay(plan, d, k % _ORDERS):
            return True
    return False


@compiled_apart
def _lay_early(plan, d):
    """Lay down the copies of a device as they come, where room was free first: none waits long."""
    num = _open_segments(plan)
    for c in range(plan.counts[0].copies):
        if _is_there(plan, c, d):
            segment = _earliest(plan, c, plan.machine.limit[d] * (1.0 + SLACK))
            if segment == NOTHING:
                plan.counts[0].stuck = c
                return False
            plan.copies[c].address = plan.segments[segment].address
            num = _cover(plan, c, num, False)
    return True


@compiled_apart
def _earliest(plan, c, limit):
    """Of the windows of segments that are free, and as large as copy c, the first that was.

    Of equal ones the tightest.
    """
    best, best_since, best_left, segment = NOTHING, np.inf, np.inf, 0
    while segment != NOTHING:
        since, end_segment, left = -1.0, segment, -1.0
        while end_segment != NOTHING and _died(plan, end_segment) <= plan.copies[c].born:
            since = max(since, np.float64(_died(plan, end_segment)))
            end_segment = plan.segments[end_segment].after
            end = limit if end_segment == NOTHING else plan.segments[end_segment].address
            left = end - plan.segments[segment].address - plan.copies[c].bytes
            if left >= 0.0:
                break
        if left >= 0.0 and (since < best_since or (since == best_since and left < best_left)):
            best, best_since, best_left = segment, since, left
        segment = plan.segments[segment].after
    return best


@compiled_apart
def _died(plan, segment):
    c = plan.segments[segment].last
    return _end(plan, c) if c != NOTHING else np.int64(-1)


@compiled_apart
def _lay(plan, d, order):
    """Lay down the copies of a device in some order; one that is stuck goes first from now on."""
    num = 0
    for c in range(plan.counts[0].copies):
        if _is_there(plan, c, d):
            key = _key(plan, c, order) - 1e30 * plan.copies[c].tries
            heap_push(plan.heap, 0, num, key, c)
            num += 1
    plan.first[d] = NOTHING
    for i in range(num):
        c = heap_pop(plan.heap, 0, num - i)
        if not _lay_one(plan, d, c):
            plan.copies[c].tries += 1
            plan.counts[0].stuck = c
            return False
    return True


@compiled_apart
def _end(plan, c):
    return plan.copies[c].died if plan.copies[c].gone != 0 else plan.counts[0].steps


@compiled_apart
def _key(plan, c, order):
    """Small ones go first."""
    size, steps = plan.copies[c].bytes, np.float64(_end(plan, c) - plan.copies[c].born)
    if order == 0:
        return np.float64(plan.copies[c].born)
    if order == 1:
        return -size
    if order == 2:
        return -steps
    return -size * steps


@compiled_apart
def _lay_one(plan, d, c):
    """The tightest gap between the copies that are there at the same time, the lowest of these."""
    size, limit = plan.copies[c].bytes, plan.machine.limit[d] * (1.0 + SLACK)
    born, died = plan.copies[c].born, _end(plan, c)
    best, best_left = -1.0, np.inf
    low, before, other = 0.0, NOTHING, plan.first[d]
    while True:
        if other != NOTHING and (plan.copies[other].born >= died or _end(plan, other) <= born):
            before, other = other, plan.copies[other].after
            continue
        high = limit if other == NOTHING else plan.copies[other].address
        left = high - low - size
        if 0.0 <= left < best_left:
            best, best_left = low, left
        if other == NOTHING:
            break
        low = max(low, plan.copies[other].address + plan.copies[other].bytes)
        before, other = other, plan.copies[other].after
    if best < 0.0:
        return False
    plan.copies[c].address = best
    before, other = NOTHING, plan.first[d]
    while other != NOTHING and plan.copies[other].address < best:
        before, other = other, plan.copies[other].after
    plan.copies[c].after = other
    if before == NOTHING:
        plan.first[d] = c
    else:
        plan.copies[before].after = c
    return True


@compiled_apart
def _wait_for_addresses(plan, d):
    """Everybody waits for those who had the same addresses last."""
    num = _open_segments(plan)
    for c in range(plan.counts[0].copies):  # in the order in which they come
        if _is_there(plan, c, d):
            num = _cover(plan, c, num, True)


@compiled_apart
def _open_segments(plan):
    """One segment that nobody had; returns how many there are."""
    plan.segments[0].address = 0.0
    plan.segments[0].last = NOTHING
    plan.segments[0].after = NOTHING
    return 1


@compiled_apart
def _cover(plan, c, num, waits):
    """Copy c is the last at its addresses, and waits for who was; returns how many segments."""
    segments, begin, segment = plan.segments, plan.copies[c].address, 0
    end = begin + plan.copies[c].bytes
    while segments[segment].after != NOTHING and segments[segments[segment].after].address <= begin:
        segment = segments[segment].after
    first, other = segment, segment
    while other != NOTHING and segments[other].address < end:
        if waits and segments[other].last != NOTHING:
            add_wait(plan, freed_by(plan, segments[other].last), plan.copies[c].creator)
        segment, other = other, segments[other].after
    last, after, mine = segments[segment].last, segments[segment].after, first
    if segments[first].address < begin:  # whose lower part keeps who had it
        mine = num
        num += 1
        segments[first].after = mine
        segments[mine].address = begin
    segments[mine].last = c
    segments[mine].after = after
    if after == NOTHING or segments[after].address > end:  # so does what lies behind
        segments[num].address = end
        segments[num].last = last
        segments[num].after = after
        segments[mine].after = num
        num += 1
    return num
