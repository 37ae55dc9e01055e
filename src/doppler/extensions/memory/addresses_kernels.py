"""Compiled: addresses of copies, and the waits that make it safe to share them.

The walk has decided when each copy comes and leaves. Two copies may share addresses if one leaves
before the other comes; the later one then waits for all tasks that use the earlier one. Copies are
placed one after another, each in the gap that it fits most tightly. A copy that fits into no gap is
placed first in the next round.

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
# Limits of the search on one device: rounds, and pairs of copies that are compared.
_MAX_ROUNDS, _MAX_PAIRS = 24, 4e6


@compiled_apart
def assign(plan):
    """Assign addresses on all devices, and add the waits that they need.

    Args:
        plan: PlanState after a walk, changed.

    Returns:
        Whether every copy has an address; if not, ``stuck`` is a copy that has none.
    """
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
    """Place the copies of a device in the order in which they come, where memory was freed first.

    So no copy waits long for its addresses.
    """
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
    """Return the free segment, large enough for copy c with its neighbours, that was freed first.

    Among equals it is the tightest.
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
    """Place the copies of a device in a given order; one that fits nowhere goes first next time."""
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
    """Return the sort key of copy c in an order; the smallest key goes first."""
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
    """Place copy c in the tightest gap between copies that are there at the same time."""
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
    """Make each copy wait for the copies that occupied its addresses last."""
    num = _open_segments(plan)
    for c in range(plan.counts[0].copies):  # numbered in the order in which they come
        if _is_there(plan, c, d):
            num = _cover(plan, c, num, True)


@compiled_apart
def _open_segments(plan):
    """Start with one segment that no copy has occupied; return the number of segments."""
    plan.segments[0].address = 0.0
    plan.segments[0].last = NOTHING
    plan.segments[0].after = NOTHING
    return 1


@compiled_apart
def _cover(plan, c, num, waits):
    """Let copy c occupy its addresses after the copies there; return the number of segments."""
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
    if segments[first].address < begin:  # the part below keeps its last copy
        mine = num
        num += 1
        segments[first].after = mine
        segments[mine].address = begin
    segments[mine].last = c
    segments[mine].after = after
    if after == NOTHING or segments[after].address > end:  # so does the part above
        segments[num].address = end
        segments[num].last = last
        segments[num].after = after
        segments[mine].after = num
        num += 1
    return num
