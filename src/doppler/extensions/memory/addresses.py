"""Addresses of copies whose stays are known, and the waits that make them safe in any order.

Two copies may share an address where one left before the other came; the later one then waits for
all that used the earlier one. Copies are laid down one after another, each in the lowest gap that
is as tight as any; those for which there was none go first the next time. Vocabulary and shape
suffixes as in arrays.py.

Source: offline dynamic storage allocation, first and best fit by decreasing size or duration
(Garey and Johnson, "Computers and Intractability", SR2; Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", arXiv 2001.03288).
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING, SLACK
from doppler.extensions.memory.space import add_wait, freed_by
from doppler.support.compiled import compiled_apart
from doppler.support.compiled.heap import heap_pop, heap_push

_ORDERS = 4
_MOST, _WORK = 24, 4e6  # times that copies are laid down; pairs of copies that are looked at


@compiled_apart
def assign(m):
    """Addresses and waits on all devices; false, and who is `stuck`, if there are none."""
    m.counts[0].stuck = NOTHING
    for d in range(len(m.first)):
        if not _lay_all(m, d):
            return False
        _wait_for_room(m, d)
    return m.counts[0].failed == 0


@compiled_apart
def _is_there(m, c, d):
    return m.copies[c].on == d and m.copies[c].bytes > 0.0 and m.copies[c].died != m.copies[c].born


@compiled_apart
def _lay_all(m, d):
    num = 0
    for c in range(m.counts[0].copies):
        m.copies[c].tries = 0
        num += 1 if _is_there(m, c, d) else 0
    most = min(_MOST, np.int64(_WORK / (1.0 + num * num)) + 2)
    if _lay_early(m, d):
        return True
    for k in range(most):
        if _lay(m, d, k % _ORDERS):
            return True
    return False


@compiled_apart
def _lay_early(m, d):
    """Lay down the copies of a device as they come, where room was free first: none waits long."""
    num = _open_segments(m)
    for c in range(m.counts[0].copies):
        if _is_there(m, c, d):
            s = _earliest(m, c, m.machine.limit[d] * (1.0 + SLACK))
            if s == NOTHING:
                m.counts[0].stuck = c
                return False
            m.copies[c].address = m.segments[s].address
            num = _cover(m, c, num, False)
    return True


@compiled_apart
def _earliest(m, c, limit):
    """Of the windows of segments that are free, and as large as copy c, the first that was.

    Of equal ones the tightest.
    """
    best, best_since, best_left, s = NOTHING, np.inf, np.inf, 0
    while s != NOTHING:
        since, t, left = -1.0, s, -1.0
        while t != NOTHING and _died(m, t) <= m.copies[c].born:
            since = max(since, np.float64(_died(m, t)))
            t = m.segments[t].after
            end = limit if t == NOTHING else m.segments[t].address
            left = end - m.segments[s].address - m.copies[c].bytes
            if left >= 0.0:
                break
        if left >= 0.0 and (since < best_since or (since == best_since and left < best_left)):
            best, best_since, best_left = s, since, left
        s = m.segments[s].after
    return best


@compiled_apart
def _died(m, s):
    c = m.segments[s].last
    return _end(m, c) if c != NOTHING else np.int64(-1)


@compiled_apart
def _lay(m, d, order):
    """Lay down the copies of a device in some order; one that is stuck goes first from now on."""
    num = 0
    for c in range(m.counts[0].copies):
        if _is_there(m, c, d):
            key = _key(m, c, order) - 1e30 * m.copies[c].tries
            heap_push(m.heap, 0, num, key, c)
            num += 1
    m.first[d] = NOTHING
    for i in range(num):
        c = heap_pop(m.heap, 0, num - i)
        if not _lay_one(m, d, c):
            m.copies[c].tries += 1
            m.counts[0].stuck = c
            return False
    return True


@compiled_apart
def _end(m, c):
    return m.copies[c].died if m.copies[c].gone != 0 else m.counts[0].steps


@compiled_apart
def _key(m, c, order):
    """Small ones go first."""
    size, steps = m.copies[c].bytes, np.float64(_end(m, c) - m.copies[c].born)
    if order == 0:
        return np.float64(m.copies[c].born)
    if order == 1:
        return -size
    if order == 2:
        return -steps
    return -size * steps


@compiled_apart
def _lay_one(m, d, c):
    """The tightest gap between the copies that are there at the same time, the lowest of these."""
    size, limit = m.copies[c].bytes, m.machine.limit[d] * (1.0 + SLACK)
    born, died = m.copies[c].born, _end(m, c)
    best, best_left = -1.0, np.inf
    low, before, other = 0.0, NOTHING, m.first[d]
    while True:
        if other != NOTHING and (m.copies[other].born >= died or _end(m, other) <= born):
            before, other = other, m.copies[other].after
            continue
        high = limit if other == NOTHING else m.copies[other].address
        left = high - low - size
        if 0.0 <= left < best_left:
            best, best_left = low, left
        if other == NOTHING:
            break
        low = max(low, m.copies[other].address + m.copies[other].bytes)
        before, other = other, m.copies[other].after
    if best < 0.0:
        return False
    m.copies[c].address = best
    before, other = NOTHING, m.first[d]
    while other != NOTHING and m.copies[other].address < best:
        before, other = other, m.copies[other].after
    m.copies[c].after = other
    if before == NOTHING:
        m.first[d] = c
    else:
        m.copies[before].after = c
    return True


@compiled_apart
def _wait_for_room(m, d):
    """Everybody waits for those who had the same addresses last."""
    num = _open_segments(m)
    for c in range(m.counts[0].copies):  # in the order in which they come
        if _is_there(m, c, d):
            num = _cover(m, c, num, True)


@compiled_apart
def _open_segments(m):
    """One segment that nobody had; returns how many there are."""
    m.segments[0].address = 0.0
    m.segments[0].last = NOTHING
    m.segments[0].after = NOTHING
    return 1


@compiled_apart
def _cover(m, c, num, waits):
    """Copy c is the last at its addresses, and waits for who was; returns how many segments."""
    segments, begin, s = m.segments, m.copies[c].address, 0
    end = begin + m.copies[c].bytes
    while segments[s].after != NOTHING and segments[segments[s].after].address <= begin:
        s = segments[s].after
    first, t = s, s
    while t != NOTHING and segments[t].address < end:
        if waits and segments[t].last != NOTHING:
            add_wait(m, freed_by(m, segments[t].last), m.copies[c].creator)
        s, t = t, segments[t].after
    last, after, mine = segments[s].last, segments[s].after, first
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
