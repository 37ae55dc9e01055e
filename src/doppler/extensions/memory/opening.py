"""The beginning of a plan: data and their uses by a schedule, inputs where they fit.

Vocabulary and shape suffixes as in arrays.py.
"""

import numpy as np

from doppler.extensions.memory.arrays import FROM_THE_START, MOVE, NOTHING, OP, SLACK
from doppler.extensions.memory.space import come, open_space
from doppler.simulator.state import NONE
from doppler.support.compiled import compiled_apart
from doppler.support.compiled.heap import heap_pop, heap_push


@compiled_apart
def open_plan(m, p, strict):
    """Forget the last plan; list the tasks by `start` and `finish`, and what uses each datum.

    strict: each device runs its ops in the order of the placement.
    """
    num_base = len(p.op_seconds) + m.free.num_transfers[0]
    counts = m.counts
    counts[0].tasks = num_base
    counts[0].placed = num_base
    counts[0].copies = 0
    counts[0].links = 0
    counts[0].waits = 0
    counts[0].steps = 0
    counts[0].position = 0
    counts[0].retired = 0
    counts[0].ended = 0
    counts[0].failed = 0
    counts[0].offloaded = 0.0
    counts[0].loaded = 0.0
    counts[0].recomputed = 0.0
    _open_tasks(m, p, num_base)
    _rank_ops(m, p, strict)
    _list_by(m, p, m.start, m.order, num_base)
    _list_by(m, p, m.finish, m.ends, num_base)
    for a in range(num_base):
        m.position[m.order[a]] = a
    open_space(m)
    _open_data(m, p)
    _list_uses(m, p, num_base)
    _place_inputs(m, p)


@compiled_apart
def operand(m, p, task, i):
    """Datum i of those that a task of the placement reads, or NOTHING past the last."""
    num_ops = len(p.op_seconds)
    if task >= num_ops:
        return np.int64(m.free.tasks[task].number) if i == 0 else NOTHING
    num_reads = p.read_ptr[task + 1] - p.read_ptr[task]
    if i < num_reads:
        return np.int64(m.free.copies[p.read_ptr[task] + i])
    k = m.machine.op_input_ptr[task] + i - num_reads
    if k < m.machine.op_input_ptr[task + 1]:
        return np.int64(m.input_datum[m.machine.op_inputs[k]])
    return NOTHING


@compiled_apart
def sink_datum(m, p, v):
    """What op v makes and no op reads."""
    return len(p.size) + len(m.free.tasks) - len(p.op_seconds) + v


@compiled_apart
def _open_tasks(m, p, num_base):
    num_ops = len(p.op_seconds)
    for task in range(num_base):
        planned = m.planned[task]
        planned.kind = OP if task < num_ops else MOVE
        planned.made = NOTHING
        planned.num_copies = 0
        planned.uses = NOTHING
        m.retired[task] = 0
        planned.key = m.free.tasks[task].key


@compiled_apart
def _rank_ops(m, p, strict):
    """Numbers of the ops that rise along edges and, under strict order, along each device's."""
    num_ops, head, tail = len(p.op_seconds), 0, 0
    if not strict:
        for v in range(num_ops):
            m.rank[v] = m.machine.depth[v]
        return
    for v in range(num_ops):
        m.pending[v] = p.read_ptr[v + 1] - p.read_ptr[v]
    for v in range(num_ops):
        if m.free.tasks[v].next != NONE:
            m.pending[m.free.tasks[v].next] += 1
    for v in range(num_ops):
        if m.pending[v] == 0:
            m.stack[tail] = v
            tail += 1
    while head < tail:
        v = m.stack[head]
        m.rank[v] = head
        head += 1
        for e in range(p.consumer_ptr[p.region_ptr[v]], p.consumer_ptr[p.region_ptr[v + 1]]):
            tail = _count_down(m, p.consumers[e], tail)
        if m.free.tasks[v].next != NONE:
            tail = _count_down(m, np.int64(m.free.tasks[v].next), tail)


@compiled_apart
def _count_down(m, v, tail):
    m.pending[v] -= 1
    if m.pending[v] == 0:
        m.stack[tail] = v
        return tail + 1
    return tail


@compiled_apart
def _list_by(m, p, time, tasks, num_base):
    """The tasks by a time; at one instant, those after which others can begin come first."""
    num_ops = len(p.op_seconds)
    for task in range(num_base):
        if task < num_ops:
            rank = 2 * m.rank[task]
        else:
            r = np.int64(m.free.tasks[task].number)
            rank = 2 * m.rank[p.region_src[r]] + 1
        heap_push(m.heap, 0, task, time[task], rank * num_base + task)
    for i in range(num_base):
        tasks[i] = heap_pop(m.heap, 0, num_base - i) % num_base


@compiled_apart
def _open_data(m, p):
    """What there is to be held, and nowhere yet."""
    num_regions, num_ops = len(p.size), len(p.op_seconds)
    for n in range(len(m.data)):
        m.data[n].end = 0
    for v in range(num_ops):
        d = np.int64(m.free.tasks[v].resource)
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            _open_datum(m, r, p.region_bytes[r], d, v)
        if p.region_ptr[v] == p.region_ptr[v + 1]:
            _open_datum(m, sink_datum(m, p, v), p.sink_bytes[v], d, v)
            m.data[sink_datum(m, p, v)].stays = 1
    for t in range(m.free.num_transfers[0]):
        r, d = np.int64(m.free.tasks[num_ops + t].number), m.free.tasks[num_ops + t].destination
        _open_datum(m, num_regions + t, p.region_bytes[r], np.int64(d), num_ops + t)
        if m.data[r].sent == NOTHING:
            m.data[r].sent = t
    first = sink_datum(m, p, num_ops)
    n = first
    for d in range(len(m.first)):
        m.devices[d].last = 0
    for i in range(len(p.input_bytes)):
        for j in range(p.input_ptr[i], p.input_ptr[i + 1]):
            d = np.int64(m.free.tasks[p.input_consumers[j]].resource)
            last = np.int64(m.devices[d].last)
            if last == 0 or m.data[last - 1].maker != -2 - i:
                _open_datum(m, n, p.input_bytes[i], d, -2 - i)
                m.data[n].evicted = FROM_THE_START
                n += 1
                m.devices[d].last = n
            m.input_datum[j] = m.devices[d].last - 1
    for k in range(first, n):
        m.data[k].maker = NOTHING
    for d in range(len(m.first)):
        m.devices[d].last = 0
    m.counts[0].inputs = n - first


@compiled_apart
def _open_datum(m, n, size, d, maker):
    datum = m.data[n]
    datum.bytes = size
    datum.on = d
    datum.at = NOTHING
    datum.evicted = NOTHING
    datum.maker = maker
    datum.use = 0
    datum.end = 0
    datum.stays = 0
    datum.dropped = 0
    datum.feeds = 0
    datum.sent = NOTHING


@compiled_apart
def _list_uses(m, p, num_base):
    """The positions of the tasks that use each datum: counted, then filled in."""
    for a in range(num_base):
        i, n = 0, operand(m, p, m.order[a], 0)
        while n != NOTHING:
            m.data[n].end += 1
            i += 1
            n = operand(m, p, m.order[a], i)
    total = 0
    for n in range(_num_data(m, p)):
        num = m.data[n].end
        m.data[n].use = total
        m.data[n].end = total
        total += num
    for a in range(num_base):
        i, n = 0, operand(m, p, m.order[a], 0)
        while n != NOTHING:
            m.uses[m.data[n].end] = a
            m.data[n].end += 1
            i += 1
            n = operand(m, p, m.order[a], i)


@compiled_apart
def _num_data(m, p):
    return sink_datum(m, p, len(p.op_seconds)) + m.counts[0].inputs


@compiled_apart
def _place_inputs(m, p):
    """Inputs are there from the start, those that are used first, as far as they fit."""
    first, num = sink_datum(m, p, len(p.op_seconds)), m.counts[0].inputs
    for k in range(num):
        heap_push(m.heap, 0, k, np.float64(m.uses[m.data[first + k].use]), first + k)
    for k in range(num):
        n = heap_pop(m.heap, 0, num - k)
        d = m.data[n].on
        if m.held[d] + m.data[n].bytes <= m.room[d] * (1.0 + SLACK):
            place_copy(m, n, NOTHING)


@compiled_apart
def place_copy(m, n, creator):
    """A copy of datum n, which ``creator`` writes; returns it. There is room."""
    c = m.counts[0].copies
    m.counts[0].copies += 1
    copy = m.copies[c]
    copy.datum = n
    copy.on = m.data[n].on
    copy.bytes = m.data[n].bytes
    copy.address = 0.0
    copy.until = 0.0
    copy.creator = creator
    copy.uses = NOTHING
    copy.num_uses = 0
    copy.pins = 0
    copy.freed = NOTHING
    copy.gone = 0
    copy.chosen = 0
    copy.tries = 0
    m.data[n].at = c
    come(m, c)
    return c
