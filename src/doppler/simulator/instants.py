"""The published semantics event by event: for placements with ops that take no time.

Events of one instant are served first in, first out, and what follows from one of them follows
over a chain of others: an op that ends finishes, and its device grants its stream to the next op;
an input made on the device reaches its reader over two events more than one that arrives. Where an
op takes no time, whole such chains interleave within an instant. Everywhere else published.py
finds the same schedule without them.

Source: the event mechanism is that of SimPy, as in published.py.
"""

import numpy as np

from doppler.compiled import compiled
from doppler.compiled.heap import heap_pop, heap_push
from doppler.simulator.queues import insert, remove
from doppler.simulator.state import NONE, QUEUE_FIFO, by_key, take_stream, transfer_seconds

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
    tasks, resources, events, hops = s.tasks, s.resources, s.events, s.hops
    num_ops, num_devices = p.op_seconds.shape
    for d in range(num_devices):
        resources[d].queue = NONE
        resources[d].free = rules.streams
        s.devices[d].busy = 0
    head, tail = 0, 0  # the events of this instant are hops[head:tail]
    for v in range(num_ops):
        if tasks[v].pending == 0:
            tail = _hop(hops, tail, REQUEST, v)
    num_scheduled, num_events, num_requests, num_done = 0, 0, 0, 0
    now, makespan = 0.0, 0.0
    while head < tail or num_events > 0:
        if head == tail:
            head, tail = 0, 0
            now = events[0].key
            while num_events > 0 and events[0].key == now:
                event = heap_pop(events, 0, num_events) % EVENTS
                num_events -= 1
                if event % KINDS == END:
                    tail = _end(s, tail, event // KINDS)
                else:
                    tail = _hop(hops, tail, ARRIVE, event // KINDS)
        kind, x = hops[head] % KINDS, hops[head] // KINDS
        head += 1
        if kind == ARRIVE or kind == JOIN:
            v = p.consumers[x]
            tasks[v].pending -= 1
            if tasks[v].pending == 0:
                tail = _hop(hops, tail, REQUEST, v)
        elif kind == LOCAL:
            tail = _hop(hops, tail, JOIN, x)
        elif kind == END:
            tail = _end(s, tail, x)
        elif kind == FINISH:
            num_done += 1
            makespan = now
            src = tasks[x].resource
            tail = _grant(s, tail, src)
            for r in range(p.region_ptr[x], p.region_ptr[x + 1]):
                for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    dst = tasks[p.consumers[e]].resource
                    at = now
                    if dst != src:
                        seconds = transfer_seconds(p, rules, seed, r, src, dst)
                        at += np.rint(seconds * COSTS_PER_SECOND)
                    if at == now:
                        tail = _hop(hops, tail, LOCAL, e)
                    else:
                        event = ARRIVE + e * KINDS + num_scheduled * EVENTS
                        heap_push(events, 0, num_events, at, event)
                        num_events += 1
                        num_scheduled += 1
        elif kind == REQUEST:
            if rules.queue == QUEUE_FIFO:
                tasks[x].key = num_requests
                num_requests += 1
            d = tasks[x].resource
            resources[d].queue = insert(tasks, resources[d].queue, np.uint32(x), NONE, by_key)
            tail = _grant(s, tail, d)
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
def _hop(hops, tail, kind, x):
    hops[tail] = kind + x * KINDS
    return tail + 1


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
