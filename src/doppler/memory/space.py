"""The address space of a device: segments in the order of their addresses, who had them, who may.

A free segment remembers the copy that had it last: whoever takes it waits for all that read that
copy, and is safe in any order of the run. Vocabulary and shape suffixes as in arrays.py.
"""

import numpy as np

from doppler.compiled import compiled_apart
from doppler.memory.arrays import FREE, NOTHING
from doppler.memory.victims import window_score

# Which of the free windows a copy gets.
EARLIEST, TIGHTEST, LOWEST, HIGHEST = 0, 1, 2, 3
RESERVED = -2  # holder of a free segment that is kept for later


@compiled_apart
def open_space(m):
    """Every device has one free segment, which nobody had."""
    counts = m.counts
    counts[0].segments = 0
    counts[0].unused = NOTHING
    for d in range(len(m.first)):
        s = new_segment(m)
        m.first[d] = s
        m.segments[s].bytes = m.machine.limit[d]
        m.segments[s].since = -1.0
        m.segments[s].before = NOTHING
        m.segments[s].after = NOTHING
        m.segments[s].holder = NOTHING
        m.segments[s].last = NOTHING


@compiled_apart
def new_segment(m):
    """A segment that is nowhere yet."""
    s = m.counts[0].unused
    if s != NOTHING:
        m.counts[0].unused = m.segments[s].after
        return s
    s = m.counts[0].segments
    m.counts[0].segments += 1
    return s


@compiled_apart
def find_free(m, d, size, fit):
    """The window of free segments for so many bytes: its first segment, or NOTHING.

    fit: EARLIEST: that was free first; TIGHTEST: that leaves least; LOWEST, HIGHEST: by address.
    """
    best, best_since, best_left = NOTHING, np.inf, np.inf
    s = m.first[d]
    while s != NOTHING:
        total, since, t = 0.0, -1.0, s
        while t != NOTHING and m.segments[t].holder == NOTHING:
            total += m.segments[t].bytes
            since = max(since, m.segments[t].since)
            if total + m.machine.slack >= size:
                break
            t = m.segments[t].after
        if t == NOTHING:
            break
        if m.segments[t].holder != NOTHING:
            s = m.segments[t].after
            continue
        left = max(0.0, total - size)
        if fit == LOWEST:
            return s
        if fit == HIGHEST:
            better = True
        elif fit == TIGHTEST:
            better = left < best_left or (left == best_left and since < best_since)
        else:
            better = since < best_since or (since == best_since and left < best_left)
        if better:
            best, best_since, best_left = s, since, left
        s = m.segments[s].after
    return best


@compiled_apart
def find_victims(m, p, d, size, now, victim):
    """The window of free and evictable segments whose eviction is best: its first, or NOTHING."""
    best, best_score, best_cost = NOTHING, -np.inf, np.inf
    s = m.first[d]
    while s != NOTHING:
        total, t = 0.0, s
        while t != NOTHING:
            if _is_barred(m, m.segments[t].holder):
                break
            total += m.segments[t].bytes
            if total + m.machine.slack >= size:
                break
            t = m.segments[t].after
        if t == NOTHING:
            break
        if _is_barred(m, m.segments[t].holder):
            s = m.segments[t].after
            continue
        score, cost = window_score(m, p, s, t, now, victim)
        if score > best_score or (score == best_score and cost < best_cost):
            best, best_score, best_cost = s, score, cost
        s = m.segments[s].after
    return best


@compiled_apart
def _is_barred(m, holder):
    """Whether a segment may not be given away: it is reserved, or its copy is pinned."""
    return holder == RESERVED or (holder != NOTHING and m.copies[holder].pins > 0)


@compiled_apart
def reserve(m, s, size, before, after):
    """Segments of so many bytes, from s on, change hands from holder ``before`` to ``after``."""
    total = 0.0
    while total + m.machine.slack < size:
        total += m.segments[s].bytes
        if m.segments[s].holder == before:
            m.segments[s].holder = after
        s = m.segments[s].after


@compiled_apart
def take_window(m, s, size, copy, from_end):
    """Give the free window that begins with segment s to a copy; who had it is in `stack`.

    Returns its segment, and how many copies had it. The rest of the window stays free, at the other
    end of it if ``from_end``.
    """
    segments, total, num, t = m.segments, 0.0, 0, s
    while True:
        total += segments[t].bytes
        if total + m.machine.slack >= size:
            break
        t = segments[t].after
    left = total - size
    if left > m.machine.slack:
        if from_end and s == t:
            s = _split_free(m, s, left)
            t = s
        else:
            _split_free(m, t, segments[t].bytes - left)
    u, total = s, 0.0
    while True:
        total += segments[u].bytes
        if segments[u].last != NOTHING:
            m.stack[num] = segments[u].last
            num += 1
        if u == t:
            break
        u = segments[u].after
    end, u = segments[t].after, segments[s].after
    while u != end:  # all but the first are given back
        after = segments[u].after
        segments[u].after = m.counts[0].unused
        m.counts[0].unused = u
        u = after
    if end != NOTHING:
        segments[end].before = s
    segments[s].after = end
    segments[s].bytes = total
    segments[s].holder = copy
    segments[s].last = NOTHING
    return s, num


@compiled_apart
def _split_free(m, s, size):
    """Cut a free segment behind so many bytes; returns the segment of the rest."""
    segments, rest = m.segments, new_segment(m)
    end = segments[s].after
    segments[rest].bytes = segments[s].bytes - size
    segments[rest].since = segments[s].since
    segments[rest].holder = NOTHING
    segments[rest].last = segments[s].last
    segments[rest].before = s
    segments[rest].after = end
    if end != NOTHING:
        segments[end].before = rest
    segments[s].after = rest
    segments[s].bytes = size
    return rest


@compiled_apart
def split_segment(m, s, size, copy):
    """The first bytes of a copy's segment go to another copy; returns the segment of the rest."""
    segments, rest = m.segments, new_segment(m)
    end = segments[s].after
    segments[rest].bytes = segments[s].bytes - size
    segments[rest].since = segments[s].since
    segments[rest].holder = segments[s].holder
    segments[rest].last = NOTHING
    segments[rest].before = s
    segments[rest].after = end
    if end != NOTHING:
        segments[end].before = rest
    segments[s].after = rest
    segments[s].bytes = size
    segments[s].holder = copy
    return rest


@compiled_apart
def give_back(m, c, since):
    """Copy c has no room any more; who comes next waits for all that used it."""
    s = m.copies[c].segment
    m.copies[c].gone = 1
    m.data[m.copies[c].datum].at = NOTHING
    if s == NOTHING:
        return
    m.segments[s].holder = NOTHING
    if m.copies[c].creator == NOTHING and m.copies[c].num_uses == 0:
        m.segments[s].last = NOTHING  # it was never there
        m.segments[s].since = -1.0
    else:
        m.segments[s].last = c
        m.segments[s].since = since


@compiled_apart
def address_of(m, s):
    """Where a segment begins."""
    address, before = 0.0, m.segments[s].before
    while before != NOTHING:
        address += m.segments[before].bytes
        before = m.segments[before].before
    return address


@compiled_apart
def freed_by(m, c):
    """The FREE task of a copy, which all that use it precede; made when it is first asked for."""
    if m.copies[c].freed == NOTHING:
        task = m.counts[0].tasks
        m.counts[0].tasks += 1
        m.planned[task].kind = FREE
        m.planned[task].made = c
        m.planned[task].num_copies = 0
        m.planned[task].uses = NOTHING
        m.planned[task].seconds = 0.0
        m.copies[c].freed = task
        link = m.copies[c].uses
        if link == NOTHING:
            add_wait(m, m.copies[c].creator, task)
        while link != NOTHING:
            add_wait(m, m.links[link].task, task)
            link = m.links[link].of_copy
    return m.copies[c].freed


@compiled_apart
def add_wait(m, task, other):
    """``other`` starts after ``task`` has finished."""
    n = m.counts[0].waits
    if n < len(m.waits):
        m.waits[n, 0] = task
        m.waits[n, 1] = other
        m.counts[0].waits = n + 1
    else:
        m.counts[0].failed = 1
