"""Orders of the ops that need little memory: which one a device had better take first.

Ops are taken one after another, as if there were one queue for all devices; what is on a device
is forgotten by least recent use. The schedule by these priorities is what the walk goes by.
Vocabulary and shape suffixes as in arrays.py.

Source: of the ready ops the one that frees most is the rule of list scheduling for registers
(Goodman and Hsu, "Code scheduling and register allocation in large basic blocks", ICS 1988).
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING
from doppler.extensions.memory.opening import operand, sink_datum
from doppler.simulator.state_kernels import output_bytes
from doppler.support.compiled import compiled_apart

# By the schedule without limits; what frees most; what is there already; what fits, in that order.
OWN, FREES, FINDS, FITS = 0, 1, 2, 3
_WINDOW = 32  # ready ops, those that start first without limits


@compiled_apart
def order_ops(m, p, rule):
    """Leave in `sequence` the place of each op, by a rule; data are open, and `start` is known."""
    num_ops, num_ready, step = len(p.op_seconds), 0, 0
    for d in range(len(m.first)):
        m.first[d] = NOTHING
        m.last[d] = NOTHING
        m.held[d] = 0.0
    for n in range(len(m.data)):
        m.data[n].at = NOTHING
    for v in range(num_ops):
        m.pending[v] = p.read_ptr[v + 1] - p.read_ptr[v]
        m.sequence[v] = 0
        if m.pending[v] == 0:
            num_ready = _insert(m, v, num_ready)
    while num_ready > 0:
        i = _best(m, p, rule, min(num_ready, _WINDOW))
        v = m.ready[i]
        for j in range(i, num_ready - 1):
            m.ready[j] = m.ready[j + 1]
        num_ready -= 1
        step += 1
        _take(m, p, v, step)
        m.sequence[v] = step
        for e in range(p.consumer_ptr[p.region_ptr[v]], p.consumer_ptr[p.region_ptr[v + 1]]):
            other = p.consumers[e]
            m.pending[other] -= 1
            if m.pending[other] == 0:
                m.sequence[other] = step  # since when it is ready
                num_ready = _insert(m, other, num_ready)


@compiled_apart
def _insert(m, v, num):
    """Into the ready ops, by the schedule without limits."""
    i = num
    while i > 0 and m.position[m.ready[i - 1]] > m.position[v]:
        m.ready[i] = m.ready[i - 1]
        i -= 1
    m.ready[i] = v
    return num + 1


@compiled_apart
def _best(m, p, rule, num):
    """Of so many ready ops the place of the one to take."""
    best, one, two, three = 0, -np.inf, -np.inf, -np.inf
    for i in range(num):
        v, missing, freed = m.ready[i], 0.0, -output_bytes(p, m.ready[i])
        j, n = 0, operand(m, p, v, 0)
        need = -freed
        while n != NOTHING:
            if m.data[n].at == NOTHING:
                missing += m.data[n].bytes
            if m.data[n].use + 1 == m.data[n].end:
                freed += m.data[n].bytes
            j += 1
            n = operand(m, p, v, j)
        a, b, c = freed, np.float64(m.sequence[v]), 0.0
        if rule == FINDS:
            a, b, c = -missing, freed, b
        elif rule == FITS:
            d = np.int64(m.free.tasks[v].resource)
            if m.held[d] + missing + need <= m.room[d]:
                return i
        if a > one or (a == one and (b > two or (b == two and c > three))):
            best, one, two, three = i, a, b, c
    return best


@compiled_apart
def _take(m, p, v, step):
    """An op is done, and its output is where it is read."""
    j, n = 0, operand(m, p, v, 0)
    while n != NOTHING:
        _touch(m, n, step)
        m.data[n].use += 1
        j += 1
        n = operand(m, p, v, j)
    _make_room(m, np.int64(m.free.tasks[v].resource), output_bytes(p, v), step)
    j, n = 0, operand(m, p, v, 0)
    while n != NOTHING:
        if m.data[n].use >= m.data[n].end and m.data[n].at != NOTHING:
            _drop(m, n)
        j += 1
        n = operand(m, p, v, j)
    if p.region_ptr[v] == p.region_ptr[v + 1]:
        _touch(m, sink_datum(m, p, v), step)
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        t = m.data[r].sent
        while t != NOTHING and t < m.free.num_transfers[0]:
            if m.free.tasks[len(p.op_seconds) + t].number != r:
                break
            _touch(m, len(p.size) + t, step)
            m.data[r].use += 1
            t += 1
        if m.data[r].use < m.data[r].end:
            _touch(m, r, step)


@compiled_apart
def _touch(m, n, step):
    """Datum n is on its device, the last to be forgotten."""
    d = m.data[n].on
    if m.data[n].at != NOTHING:
        _drop(m, n)
    _make_room(m, d, m.data[n].bytes, step)
    m.held[d] += m.data[n].bytes
    m.data[n].at = step
    m.data[n].before = m.last[d]
    m.data[n].after = NOTHING
    if m.last[d] == NOTHING:
        m.first[d] = n
    else:
        m.data[m.last[d]].after = n
    m.last[d] = n


@compiled_apart
def _make_room(m, d, size, step):
    """Forget what has not been used for long, but nothing of this step."""
    n = m.first[d]
    while n != NOTHING and m.held[d] + size > m.room[d] and m.data[n].at != step:
        _drop(m, n)
        n = m.first[d]


@compiled_apart
def _drop(m, n):
    """Datum n is not on its device any more."""
    d, before, after = m.data[n].on, m.data[n].before, m.data[n].after
    m.data[n].at = NOTHING
    m.held[d] -= m.data[n].bytes
    if before == NOTHING:
        m.first[d] = after
    else:
        m.data[before].after = after
    if after == NOTHING:
        m.last[d] = before
    else:
        m.data[after].before = before
