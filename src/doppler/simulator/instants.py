"""The published semantics event by event: for placements with ops that take no time.

Events of one instant are served first in, first out, and what follows from one of them follows
over a chain of others: an op that ends finishes, and its device grants its stream to the next op;
an input made on the device reaches its reader over two events more than one that arrives. Where an
op takes no time, whole such chains interleave within an instant. Everywhere else published.py
finds the same schedule without them.

Source: the event mechanism is that of SimPy, as in published.py.
"""

import numpy as np

from doppler.simulator.queues import insert, remove
from doppler.simulator.state import NONE, QUEUE_FIFO, by_key, take_stream, transfer_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import heap_pop, heap_push

# What an event is: an edge arrives, or leads to its reader on the same device in two steps; an op
# ends, tells its readers, asks for its device, gets it. As a number: kind + (op or edge) * KINDS.
ARRIVE, LOCAL, JOIN, END, FINISH, REQUEST, GRANT = 0, 1, 2, 3, 4, 5, 6
KINDS = 8
# Timed events carry their number in the order of scheduling, which breaks ties: the task of a heap
# entry is event + number * EVENTS.
EVENTS = 1 << 32
COSTS_PER_SECOND = 1e10


@compiled
def simulate(p, rules, seed, s):
    """Run a placement that published.simulate has opened; result as there."""
    tasks, events, hops = s.tasks, s.events, s.hops
    num_ops = len(p.op_seconds)
    head, tail = 0, _open(rules, s, num_ops)  # the events of this instant are hops[head:tail]
    num_scheduled, num_events, num_requests, num_done = 0, 0, 0, 0
    now, makespan = 0.0, 0.0
    while head < tail or num_events > 0:
        if head == tail:
            now = events[0].key
            head, tail, num_events = 0, *_next_instant(s, num_events)
        kind, x = hops[head] % KINDS, hops[head] // KINDS
        head += 1
        if kind == ARRIVE or kind == JOIN:
            tail = _arrive(s, tail, p.consumers[x])
        elif kind == LOCAL:
            tail = _hop(hops, tail, JOIN, x)
        elif kind == END:
            tail = _end(s, tail, x)
        elif kind == FINISH:
            num_done += 1
            makespan = now
            tail = _grant(s, tail, tasks[x].resource)
            tail, num_new = _send(p, rules, seed, s, now, x, tail, num_events, num_scheduled)
            num_events += num_new
            num_scheduled += num_new
        elif kind == REQUEST:
            tail = _request(rules, s, tail, x, num_requests)
            num_requests += 1
        else:
            tasks[x].start = now
            tasks[x].finish += now
            if tasks[x].finish == now:
                tail = _hop(hops, tail, END, x)
            else:
                event = END + x * KINDS + num_scheduled * EVENTS
                heap_push(events, 0, num_events, tasks[x].finish, event)
                num_events += 1
                num_scheduled += 1
    return makespan / COSTS_PER_SECOND if num_done == num_ops else np.inf


@compiled
def _open(rules, s, num_ops):
    """Every device is free, ops without producers ask for theirs; returns the number of hops."""
    for d in range(len(s.devices)):
        s.resources[d].queue = NONE
        s.resources[d].free = rules.streams
        s.devices[d].busy = 0
    tail = 0
    for v in range(num_ops):
        if s.tasks[v].pending == 0:
            tail = _hop(s.hops, tail, REQUEST, v)
    return tail


@compiled
def _next_instant(s, num_events):
    """The timed events of the next instant become hops; returns how many, and how many are left."""
    now, tail = s.events[0].key, 0
    while num_events > 0 and s.events[0].key == now:
        event = heap_pop(s.events, 0, num_events) % EVENTS
        num_events -= 1
        if event % KINDS == END:
            tail = _end(s, tail, event // KINDS)
        else:
            tail = _hop(s.hops, tail, ARRIVE, event // KINDS)
    return tail, num_events


@compiled
def _send(p, rules, seed, s, now, v, tail, num_events, num_scheduled):
    """What op v made goes to its readers; returns the hops, and how many timed events are new."""
    src, num_new = s.tasks[v].resource, 0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            dst = s.tasks[p.consumers[e]].resource
            at = now
            if dst != src:
                seconds = transfer_seconds(p, rules, seed, r, src, dst)
                at += np.rint(seconds * COSTS_PER_SECOND)
            if at == now:
                tail = _hop(s.hops, tail, LOCAL, e)
            else:
                event = ARRIVE + e * KINDS + (num_scheduled + num_new) * EVENTS
                heap_push(s.events, 0, num_events + num_new, at, event)
                num_new += 1
    return tail, num_new


@compiled
def _hop(hops, tail, kind, x):
    hops[tail] = kind + x * KINDS
    return tail + 1


@compiled
def _arrive(s, tail, v):
    """Op v waits for one region less; after the last one it asks for its device."""
    s.tasks[v].pending -= 1
    return _hop(s.hops, tail, REQUEST, v) if s.tasks[v].pending == 0 else tail


@compiled
def _request(rules, s, tail, v, number):
    """Op v enters the queue of its device; ``number``: of the requests so far."""
    if rules.queue == QUEUE_FIFO:
        s.tasks[v].key = number
    d = s.tasks[v].resource
    s.resources[d].queue = insert(s.tasks, s.resources[d].queue, np.uint32(v), NONE, by_key)
    return _grant(s, tail, d)


@compiled
def _end(s, tail, v):
    """The time of an op is over: its stream is free, all else follows."""
    d = s.tasks[v].resource
    s.resources[d].free += 1
    s.devices[d].busy &= ~(1 << s.tasks[v].stream)
    return _hop(s.hops, tail, FINISH, v)


@compiled
def _grant(s, tail, d):
    """Give device d to the op that is next; one op at a time, as SimPy does it."""
    v = s.resources[d].queue
    if s.resources[d].free > 0 and v != NONE:
        s.resources[d].queue = remove(s.tasks, v, NONE, by_key)
        s.resources[d].free -= 1
        s.tasks[v].stream = take_stream(s.devices, d)
        tail = _hop(s.hops, tail, GRANT, np.int64(v))
    return tail
