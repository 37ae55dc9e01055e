"""The planner: a walk over the tasks of a placement that gives every copy its address.

The placement is simulated without limits first; its tasks are taken by when they start there, and
retired by when they end. A task gets room for what it makes, and what it reads is brought back
where it has been evicted. Room is looked for among what is free, then among what is free once more
tasks are retired, and only then somebody is evicted: so loads go to room that was free early, and
start early. What waits for what depends on no order of the run; the proof is checks.py.
Vocabulary and shape suffixes as in arrays.py.

Source: TURNIP (arXiv 2405.16283): tasks in a row, allocation ahead of execution, dependencies on
those who freed, the span of the farthest next use. Ours: the row is a simulated schedule, inputs
begin where they fit, an eviction may begin before the last use of what is evicted, recomputation.
"""

import numpy as np

from doppler.compiled import compiled_apart
from doppler.memory.arrays import EVICT, LOAD, NOTHING, RECOMPUTE
from doppler.memory.opening import open_plan, operand, place_copy, sink_datum
from doppler.memory.space import (
    EARLIEST,
    HIGHEST,
    LOWEST,
    RESERVED,
    add_wait,
    address_of,
    find_free,
    find_victims,
    freed_by,
    give_back,
    reserve,
    split_segment,
    take_window,
)
from doppler.memory.victims import CHEAPEST, can_recompute, host_seconds
from doppler.simulator.state import output_bytes

_SMALL = 16  # so many of a size fit


@compiled_apart
def walk(m, p, strict):
    """Plan the placement whose schedule is in `start` and `finish`; false if it cannot be done."""
    open_plan(m, p, strict)
    for a in range(m.counts[0].placed):
        if _allocate(m, p, a, False) == NOTHING:
            continue
        if _allocate_around(m, p, a):
            continue
        _clear(m, p, a)
        if _allocate(m, p, a, True) != NOTHING or m.counts[0].failed != 0:
            return False
    _retire_all(m, p, m.counts[0].placed)
    return m.counts[0].failed == 0


@compiled_apart
def _allocate(m, p, a, packed):
    """Room for all that the task at position a needs; returns the device that lacks it.

    packed: from the lowest address on.
    """
    task, num_ops = m.order[a], len(p.op_seconds)
    if task >= num_ops:
        r = np.int64(m.free.tasks[task].number)
        d = _bring_all(m, p, a, packed)
        if d != NOTHING:
            return d
        to = np.int64(m.free.tasks[task].destination)
        if _make(m, p, a, len(p.size) + task - num_ops, 1, p.region_bytes[r], to, packed):
            return NOTHING
        _unpin(m, p, task)
        return to
    d = _bring_all(m, p, a, packed)
    if d != NOTHING:
        return d
    d = np.int64(m.free.tasks[task].resource)
    first, num_data = p.region_ptr[task], p.region_ptr[task + 1] - p.region_ptr[task]
    if num_data == 0:
        first, num_data = sink_datum(m, p, task), 1
    total = 0.0
    for n in range(first, first + num_data):
        total += m.data[n].bytes
    if _make(m, p, a, first, num_data, total, d, packed):
        return NOTHING
    _unpin(m, p, task)
    return d


@compiled_apart
def _allocate_around(m, p, a):
    """As `_allocate`, the room for what an op makes first, where that costs least; or false.

    What the op reads may have lain there, and is brought again. A transfer makes one thing, for
    which there was no room at all.
    """
    task = m.order[a]
    _retire_all(m, p, a)
    if task >= len(p.op_seconds):
        return False
    d, size = np.int64(m.free.tasks[task].resource), output_bytes(p, task)
    if size == 0.0:
        return False
    s = find_victims(m, p, d, size, m.start[task], CHEAPEST)
    if s == NOTHING:
        return False
    _evict_window(m, p, a, s, size)
    reserve(m, s, size, NOTHING, RESERVED)
    lacking = _bring_all(m, p, a, False)
    reserve(m, s, size, RESERVED, NOTHING)
    if lacking != NOTHING:
        return False
    first, num = p.region_ptr[task], p.region_ptr[task + 1] - p.region_ptr[task]
    if num == 0:
        first, num = sink_datum(m, p, task), 1
    if _make(m, p, a, first, num, size, d, False):
        return True
    _unpin(m, p, task)
    return False


@compiled_apart
def _bring_all(m, p, a, packed):
    """Have all that the task at position a reads on its device, pinned; or that device."""
    task, i = m.order[a], 0
    while True:
        n = operand(m, p, task, i)
        if n == NOTHING:
            return NOTHING
        if m.data[n].at == NOTHING and not _bring(m, p, a, n, packed):
            for j in range(i):
                m.copies[m.data[operand(m, p, task, j)].at].pins -= 1
            return np.int64(m.data[n].on)
        m.copies[m.data[n].at].pins += 1
        i += 1


@compiled_apart
def _unpin(m, p, task):
    i, n = 0, operand(m, p, task, 0)
    while n != NOTHING:
        m.copies[m.data[n].at].pins -= 1
        i += 1
        n = operand(m, p, task, i)


@compiled_apart
def _make(m, p, a, first, num, total, d, packed):
    """Room for the data that the task at position a makes, and its waits; false if there is none.

    The data are ``first`` to ``first + num - 1``, of ``total`` bytes together.
    """
    task, c = m.order[a], m.counts[0].copies
    if total > 0.0 and not _take(m, p, a, task, c, total, d, packed, m.counts[0].fit):
        return False
    segment = m.copies[c].segment if total > 0.0 else NOTHING
    m.planned[task].made = c
    m.planned[task].num_copies = num
    for n in range(first, first + num):
        copy, size = place_copy(m, n, task, NOTHING), m.data[n].bytes
        m.copies[copy].pins = 1
        m.copies[copy].until = m.finish[task]
        if size > 0.0:
            if n + 1 < first + num and m.segments[segment].bytes > size:
                rest = split_segment(m, segment, size, copy)
            else:
                rest = segment
            m.segments[segment].holder = copy
            m.copies[copy].segment = segment
            m.copies[copy].address = address_of(m, segment)
            segment = rest
    i, n = 0, operand(m, p, task, 0)
    while n != NOTHING:
        _use(m, m.data[n].at, task)
        i += 1
        n = operand(m, p, task, i)
    return True


@compiled_apart
def _use(m, c, task):
    """A task reads a copy: it waits for who writes it, and the copy's room for the task."""
    link = m.counts[0].links
    m.counts[0].links += 1
    m.links[link].read = c
    m.links[link].task = task
    m.links[link].of_copy = m.copies[c].uses
    m.links[link].of_task = m.planned[task].uses
    m.copies[c].uses = link
    m.copies[c].num_uses += 1
    m.planned[task].uses = link
    if m.copies[c].creator != NOTHING:
        add_wait(m, m.copies[c].creator, task)


@compiled_apart
def _take(m, p, a, task, c, size, d, packed, fit):
    """Give room to copy c, which ``task`` is to write, and let it wait for who had it; or false."""
    s = _room(m, p, a, size, d, LOWEST if packed else _at_edge(m, d, size, fit))
    if s == NOTHING:
        return False
    s, num = take_window(m, s, size, c, not packed and _at_edge(m, d, size, fit) == HIGHEST)
    m.copies[c].segment = s
    for i in range(num):
        add_wait(m, freed_by(m, m.stack[i]), task)
    return True


@compiled_apart
def _at_edge(m, d, size, fit):
    """Large copies from one edge of the memory, small ones from the other; or as ``fit`` says."""
    if m.counts[0].fit != LOWEST:
        return fit
    return HIGHEST if size * _SMALL < m.machine.limit[d] else LOWEST


@compiled_apart
def _room(m, p, a, size, d, fit):
    """The first segment of a free window for so many bytes, or NOTHING: see the top."""
    now = m.start[m.order[a]]
    patient = m.start[m.order[max(0, a - m.counts[0].ahead)]]
    while True:
        s = find_free(m, d, size, fit)
        if s != NOTHING:
            return s
        ending = _next_to_end(m, a)
        if ending != NOTHING and m.finish[ending] <= patient:
            _retire(m, p, ending)
            continue
        s = find_victims(m, p, d, size, now, m.choices.victim)
        if s != NOTHING:
            _evict_window(m, p, a, s, size)
            return s
        if ending == NOTHING:
            return NOTHING
        _retire(m, p, ending)


@compiled_apart
def _next_to_end(m, a):
    """Of the tasks that have room and are not retired, the first to end; or NOTHING."""
    if m.counts[0].retired >= a:
        return NOTHING
    i = m.counts[0].ended
    while m.retired[m.ends[i]] != 0:
        i += 1
    m.counts[0].ended = i
    while m.retired[m.ends[i]] != 0 or m.position[m.ends[i]] >= a:
        i += 1
    return np.int64(m.ends[i])


@compiled_apart
def _retire(m, p, task):
    """A task has ended: what it was the last to read gives its room back."""
    i = 0
    m.retired[task] = 1
    m.counts[0].retired += 1
    first = m.planned[task].made
    for c in range(first, first + m.planned[task].num_copies):
        m.copies[c].pins -= 1
    n = operand(m, p, task, 0)
    while n != NOTHING:
        c = m.data[n].at
        m.copies[c].pins -= 1
        m.copies[c].until = max(m.copies[c].until, m.finish[task])
        m.data[n].use += 1
        is_read = m.data[n].use >= m.data[n].end and m.data[n].stays == 0
        if is_read and m.copies[c].pins == 0:  # else something is computed from it again
            give_back(m, c, m.copies[c].until)
        i += 1
        n = operand(m, p, task, i)


@compiled_apart
def _evict_window(m, p, a, s, size):
    """Evict all that is in a window of so many bytes."""
    total = 0.0
    while total + m.machine.slack < size:
        total += m.segments[s].bytes
        c = m.segments[s].holder
        if c != NOTHING:
            _evict(m, p, a, c, True)
        s = m.segments[s].after


@compiled_apart
def _evict(m, p, a, c, may_drop):
    """Copy c gives its room away: it is copied to the host, unless that has it, or dropped."""
    n, until = m.copies[c].datum, m.copies[c].until
    if m.data[n].evicted == NOTHING:
        if may_drop and can_recompute(m, p, n):
            m.data[n].dropped = 1
            _count_feeds(m, p, n, 1)
        else:
            task = _new_task(m, EVICT, m.order[a])
            m.planned[task].made = c
            m.planned[task].seconds = host_seconds(m, m.data[n].on, m.data[n].bytes)
            _use(m, c, task)
            m.data[n].evicted = task
            until = max(until, m.start[m.order[a]]) + m.planned[task].seconds
            m.counts[0].offloaded += m.data[n].bytes
    give_back(m, c, until)


@compiled_apart
def _count_feeds(m, p, n, change):
    """What datum n is computed from again has one more, or less, that needs it."""
    v = m.data[n].maker
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        m.data[m.free.copies[i]].feeds += change


@compiled_apart
def _new_task(m, kind, of):
    """A task of the plan's own, with the place in its queue that task ``of`` has."""
    task = m.counts[0].tasks
    m.counts[0].tasks += 1
    m.planned[task].kind = kind
    m.planned[task].made = NOTHING
    m.planned[task].num_copies = 0
    m.planned[task].uses = NOTHING
    m.planned[task].seconds = 0.0
    m.planned[task].key = m.planned[of].key
    return task


@compiled_apart
def _bring(m, p, a, n, packed):
    """Have datum n back on its device, for the task at position a; false if there is no room."""
    if m.data[n].dropped != 0:
        return _recompute(m, p, a, n, packed)
    return _load(m, p, a, n, packed)


@compiled_apart
def _load(m, p, a, n, packed):
    size, d = m.data[n].bytes, np.int64(m.data[n].on)
    task = _new_task(m, LOAD, m.order[a])
    if size > 0.0 and not _take(m, p, a, task, m.counts[0].copies, size, d, packed, EARLIEST):
        m.counts[0].tasks -= 1
        return False
    _place(m, n, task)
    m.planned[task].seconds = host_seconds(m, d, size)
    if m.data[n].evicted >= 0:
        add_wait(m, m.data[n].evicted, task)
    m.counts[0].loaded += size
    return True


@compiled_apart
def _place(m, n, task):
    """The new copy of datum n lies in the room that its task has taken."""
    c = m.counts[0].copies
    segment = m.copies[c].segment if m.data[n].bytes > 0.0 else NOTHING
    place_copy(m, n, task, segment)
    if segment != NOTHING:
        m.segments[segment].holder = c
        m.copies[c].address = address_of(m, segment)
    m.planned[task].made = c
    m.planned[task].num_copies = 1


@compiled_apart
def _recompute(m, p, a, n, packed):
    """Compute datum n again from what its op reads, which is brought first."""
    v, d, i = m.data[n].maker, np.int64(m.data[n].on), 0
    read, fits = operand(m, p, v, 0), True
    while read != NOTHING and fits:
        fits = m.data[read].at != NOTHING or _load(m, p, a, read, packed)
        if fits:
            m.copies[m.data[read].at].pins += 1
            i += 1
            read = operand(m, p, v, i)
    task, size = m.counts[0].tasks, m.data[n].bytes
    if fits:
        _new_task(m, RECOMPUTE, m.order[a])
        if size > 0.0:
            fits = _take(m, p, a, task, m.counts[0].copies, size, d, packed, EARLIEST)
        if fits:
            _place(m, n, task)
            m.planned[task].seconds = p.op_seconds[v, d]
            m.data[n].dropped = 0
            _count_feeds(m, p, n, -1)
            m.counts[0].recomputed += p.op_seconds[v, d]
        else:
            m.counts[0].tasks -= 1
    for j in range(i):
        c = m.data[operand(m, p, v, j)].at
        m.copies[c].pins -= 1
        if fits:
            _use(m, c, task)
    return fits


@compiled_apart
def _retire_all(m, p, a):
    """All tasks before position a have ended."""
    ending = _next_to_end(m, a)
    while ending != NOTHING:
        _retire(m, p, ending)
        ending = _next_to_end(m, a)


@compiled_apart
def _clear(m, p, a):
    """Where a task found no room, between what others have: all that came before has ended.

    Everything on its devices is evicted; packed from the lowest address on, the task has room.
    """
    _retire_all(m, p, a)
    task = m.order[a]
    for d in range(len(m.first)):
        is_its = d == m.data[_its_datum(m, p, task)].on
        if task >= len(p.op_seconds):
            is_its = is_its or d == m.free.tasks[task].source
        s = m.first[d]
        while is_its and s != NOTHING:
            c = m.segments[s].holder
            if c != NOTHING and m.copies[c].pins == 0:
                _evict(m, p, a, c, False)
            s = m.segments[s].after


@compiled_apart
def _its_datum(m, p, task):
    """A datum that a task makes."""
    num_ops = len(p.op_seconds)
    if task >= num_ops:
        return len(p.size) + task - num_ops
    if p.region_ptr[task] < p.region_ptr[task + 1]:
        return p.region_ptr[task]
    return sink_datum(m, p, task)
