"""The planner: a walk over the tasks of a placement that says who is on which device, and when.

The placement is simulated without limits first; its tasks are taken by when they start there, and
retired by when they end. A task gets room for what it makes, and what it reads is brought back
where it has been evicted. Where there is no room, tasks are retired before their time, or somebody
is evicted. Addresses come last (addresses.py); where they fail, all is evicted before a task, so
that those that came before it are out of the way. What waits for what depends on no order of the
run; the proof is checks.py. Vocabulary and shape suffixes as in arrays.py.

Source: TURNIP (arXiv 2405.16283): tasks in a row, allocation ahead of execution, dependencies on
those who freed. Ours: the row is a simulated schedule, addresses when all stays are known, inputs
begin where they fit, an eviction may begin before the last use of what is evicted, recomputation.
"""

import numpy as np

from doppler.extensions.memory.addresses import assign
from doppler.extensions.memory.arrays import EVICT, LOAD, NOTHING, RECOMPUTE, SLACK
from doppler.extensions.memory.opening import open_plan, operand, place_copy, sink_datum
from doppler.extensions.memory.space import add_wait, choose_victims, leave
from doppler.extensions.memory.victims import can_recompute, host_seconds
from doppler.support.compiled import compiled_apart

_SMALLER, _LESS = 5, 0.93  # so often less memory is used before any is emptied


@compiled_apart
def walk(m, p, strict):
    """Plan the placement whose schedule is in `start` and `finish`; false if it cannot be done."""
    for a in range(len(m.clears)):
        m.clears[a] = 0
    num = 0
    while True:
        if not _walk_once(m, p, strict) or _copies_too_long(m):
            return False
        if assign(m):
            return True
        num += 1
        if m.counts[0].failed != 0 or num > _SMALLER + m.counts[0].clears:
            return False
        d = m.copies[m.counts[0].stuck].on
        if num <= _SMALLER and m.room[d] > m.devices[d].first:
            m.room[d] = max(m.devices[d].first, _LESS * m.room[d])
        else:
            _clear_once_more(m, p)


@compiled_apart
def _walk_once(m, p, strict):
    open_plan(m, p, strict)
    for a in range(m.counts[0].placed):
        m.counts[0].position = a
        if m.clears[a] != 0:
            _clear(m, p, a)
        _retire_until(m, p, a, m.start[m.order[max(0, a - m.counts[0].ahead)]])
        if not _allocate(m, p, a):
            return False
    _retire_until(m, p, m.counts[0].placed, np.inf)
    return m.counts[0].failed == 0


@compiled_apart
def _copies_too_long(m):
    """Whether the loads of a device alone take longer than a plan that is known."""
    for d in range(len(m.last)):
        seconds = 0.0
        for c in range(m.counts[0].copies):
            task = m.copies[c].creator
            if m.copies[c].on == d and task != NOTHING and m.planned[task].kind == LOAD:
                seconds += m.planned[task].seconds
        if seconds > m.counts[0].latest:
            return True
    return False


@compiled_apart
def _clear_once_more(m, p):
    """The next walk clears a device before one task more: the first of those after who is stuck."""
    c, num = m.counts[0].stuck, len(m.clears)
    for i in range(num):
        a = (m.copies[c].position + i) % num
        if m.clears[a] == 0 and _concerns(m, p, m.order[a], m.copies[c].on):
            m.clears[a] = 1
            return
    m.counts[0].failed = 1


@compiled_apart
def _allocate(m, p, a):
    """Room for all that the task at position a needs; false if there is none."""
    task, num_ops = m.order[a], len(p.op_seconds)
    if not _bring_all(m, p, a):
        return False
    if task >= num_ops:
        first, num = len(p.size) + task - num_ops, 1
    else:
        first, num = p.region_ptr[task], p.region_ptr[task + 1] - p.region_ptr[task]
        if num == 0:
            first, num = sink_datum(m, p, task), 1
    return _make(m, p, a, first, num)


@compiled_apart
def _bring_all(m, p, a):
    """Have all that the task at position a reads on its device, pinned till it ends; or false."""
    task, i = m.order[a], 0
    while True:
        n = operand(m, p, task, i)
        if n == NOTHING:
            return True
        if m.data[n].at == NOTHING and not _bring(m, p, a, n):
            return False
        m.copies[m.data[n].at].pins += 1
        i += 1


@compiled_apart
def _make(m, p, a, first, num):
    """Room for the data ``first`` to ``first + num - 1``, which the task at position a makes."""
    task, total = m.order[a], 0.0
    for n in range(first, first + num):
        total += m.data[n].bytes
    if not _have_room(m, p, a, total, m.data[first].on):
        return False
    m.planned[task].made = m.counts[0].copies
    m.planned[task].num_copies = num
    for n in range(first, first + num):
        copy = place_copy(m, n, task)
        m.copies[copy].pins = 1
        m.copies[copy].until = m.finish[task]
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
def _have_room(m, p, a, size, d):
    """So many bytes are free on device d for the task at position a, or false: see the top."""
    now = m.start[m.order[a]]
    while True:
        lack = m.held[d] + size - m.room[d] * (1.0 + SLACK)
        if lack <= 0.0 or size == 0.0:
            return True
        ending = _next_to_end(m, a)
        num, seconds = choose_victims(m, p, d, lack, now, m.choices.victim)
        latest = now + m.counts[0].patience * seconds if num > 0 else np.inf
        if ending != NOTHING and m.finish[ending] <= latest:
            _retire(m, p, ending)
            continue
        if num == 0:
            return False
        for i in range(num):
            _evict(m, p, a, m.stack[i], True)


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
            leave(m, c)
        i += 1
        n = operand(m, p, task, i)


@compiled_apart
def _evict(m, p, a, c, may_drop):
    """Copy c gives its room away: it is copied to the host, unless that has it, or dropped."""
    n = m.copies[c].datum
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
            m.counts[0].offloaded += m.data[n].bytes
    leave(m, c)


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
def _bring(m, p, a, n):
    """Have datum n back on its device, for the task at position a; false if there is no room."""
    if m.data[n].dropped != 0:
        return _recompute(m, p, a, n)
    return _load(m, p, a, n)


@compiled_apart
def _load(m, p, a, n):
    size, d = m.data[n].bytes, np.int64(m.data[n].on)
    if not _have_room(m, p, a, size, d):
        return False
    task = _new_task(m, LOAD, m.order[a])
    _place(m, n, task)
    m.planned[task].seconds = host_seconds(m, d, size)
    if m.data[n].evicted >= 0:
        add_wait(m, m.data[n].evicted, task)
    m.counts[0].loaded += size
    return True


@compiled_apart
def _place(m, n, task):
    """The new copy of datum n, which its task writes."""
    m.planned[task].made = place_copy(m, n, task)
    m.planned[task].num_copies = 1


@compiled_apart
def _recompute(m, p, a, n):
    """Compute datum n again from what its op reads, which is brought first."""
    v, d, i = m.data[n].maker, np.int64(m.data[n].on), 0
    read, fits = operand(m, p, v, 0), True
    while read != NOTHING and fits:
        fits = m.data[read].at != NOTHING or _load(m, p, a, read)
        if fits:
            m.copies[m.data[read].at].pins += 1
            i += 1
            read = operand(m, p, v, i)
    if fits and _have_room(m, p, a, m.data[n].bytes, d):
        task = _new_task(m, RECOMPUTE, m.order[a])
        _place(m, n, task)
        m.planned[task].seconds = p.op_seconds[v, d]
        m.data[n].dropped = 0
        _count_feeds(m, p, n, -1)
        m.counts[0].recomputed += p.op_seconds[v, d]
    else:
        fits, task = False, NOTHING
    for j in range(i):
        c = m.data[operand(m, p, v, j)].at
        m.copies[c].pins -= 1
        if fits:
            _use(m, c, task)
    return fits


@compiled_apart
def _retire_until(m, p, a, time):
    """All tasks before position a that end until then have ended."""
    ending = _next_to_end(m, a)
    while ending != NOTHING and m.finish[ending] <= time:
        _retire(m, p, ending)
        ending = _next_to_end(m, a)


@compiled_apart
def _clear(m, p, a):
    """All that came before the task at position a has ended, and its devices are empty."""
    _retire_until(m, p, a, np.inf)
    for d in range(len(m.first)):
        c = m.first[d]
        while _concerns(m, p, m.order[a], d) and c != NOTHING:
            after = m.copies[c].after
            _evict(m, p, a, c, False)
            c = after


@compiled_apart
def _concerns(m, p, task, d):
    """Whether a task needs room on device d."""
    num_ops = len(p.op_seconds)
    if task < num_ops:
        return d == m.free.tasks[task].resource
    return d == m.free.tasks[task].source or d == m.free.tasks[task].destination
