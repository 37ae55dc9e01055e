"""Compiled: the published semantics event by event, for placements with ops that take no time.

Events of one instant are served first in, first out, and what follows from one of them follows
over a chain of others: an op that ends finishes, and its device grants its stream to the next op;
an input made on the device reaches its reader over two events more than one that arrives. Where an
op takes no time, whole such chains interleave within an instant. Everywhere else
published_kernels.py finds the same schedule without them.

Vocabulary and dimensions as in state.py. Indices: v op, r region, e edge, d device, item: the op or
edge that an event is about.

Source: the event mechanism is that of SimPy, as in published_kernels.py.
"""

import numpy as np

from doppler.simulator.queue_kernels import insert, remove
from doppler.simulator.state import NONE, QUEUE_FIFO
from doppler.simulator.state_kernels import by_key, take_stream, transfer_seconds
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
def simulate(problem, rules, seed, state):
    """Run a placement that published_kernels.simulate has opened; result as there.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        seed: of jitter.
        state: State of the engine; the schedule is left in ``state.tasks``.

    Returns:
        The makespan in seconds; inf if some op never ends.
    """
    tasks, events, hops = state.tasks, state.events, state.hops
    num_ops = len(problem.op_seconds)
    head, tail = 0, _open(rules, state, num_ops)  # the events of this instant are hops[head:tail]
    num_scheduled, num_events, num_requests, num_done = 0, 0, 0, 0
    now, makespan = 0.0, 0.0
    while head < tail or num_events > 0:
        if head == tail:
            now = events[0].key
            head, tail, num_events = 0, *_next_instant(state, num_events)
        kind, item = hops[head] % KINDS, hops[head] // KINDS
        head += 1
        if kind == ARRIVE or kind == JOIN:
            tail = _arrive(state, tail, problem.consumers[item])
        elif kind == LOCAL:
            tail = _hop(hops, tail, JOIN, item)
        elif kind == END:
            tail = _end(state, tail, item)
        elif kind == FINISH:
            num_done += 1
            makespan = now
            tail = _grant(state, tail, tasks[item].resource)
            tail, num_new = _send(
                problem, rules, seed, state, now, item, tail, num_events, num_scheduled
            )
            num_events += num_new
            num_scheduled += num_new
        elif kind == REQUEST:
            tail = _request(rules, state, tail, item, num_requests)
            num_requests += 1
        else:
            tasks[item].start = now
            tasks[item].finish += now
            if tasks[item].finish == now:
                tail = _hop(hops, tail, END, item)
            else:
                event = END + item * KINDS + num_scheduled * EVENTS
                heap_push(events, 0, num_events, tasks[item].finish, event)
                num_events += 1
                num_scheduled += 1
    return makespan / COSTS_PER_SECOND if num_done == num_ops else np.inf


@compiled
def _open(rules, state, num_ops):
    """Free all devices, and let ops without producers ask for theirs; return the number of hops."""
    for d in range(len(state.devices)):
        state.resources[d].queue = NONE
        state.resources[d].free = rules.streams
        state.devices[d].busy = 0
    tail = 0
    for v in range(num_ops):
        if state.tasks[v].pending == 0:
            tail = _hop(state.hops, tail, REQUEST, v)
    return tail


@compiled
def _next_instant(state, num_events):
    """Turn the next instant's timed events into hops; return how many, and how many are left."""
    now, tail = state.events[0].key, 0
    while num_events > 0 and state.events[0].key == now:
        event = heap_pop(state.events, 0, num_events) % EVENTS
        num_events -= 1
        if event % KINDS == END:
            tail = _end(state, tail, event // KINDS)
        else:
            tail = _hop(state.hops, tail, ARRIVE, event // KINDS)
    return tail, num_events


@compiled
def _send(problem, rules, seed, state, now, v, tail, num_events, num_scheduled):
    """Send the output of op v to its readers; return the number of hops and of timed events."""
    src, num_new = state.tasks[v].resource, 0
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            dst = state.tasks[problem.consumers[e]].resource
            at = now
            if dst != src:
                seconds = transfer_seconds(problem, rules, seed, r, src, dst)
                at += np.rint(seconds * COSTS_PER_SECOND)
            if at == now:
                tail = _hop(state.hops, tail, LOCAL, e)
            else:
                event = ARRIVE + e * KINDS + (num_scheduled + num_new) * EVENTS
                heap_push(state.events, 0, num_events + num_new, at, event)
                num_new += 1
    return tail, num_new


@compiled
def _hop(hops, tail, kind, item):
    hops[tail] = kind + item * KINDS
    return tail + 1


@compiled
def _arrive(state, tail, v):
    """Record that op v waits for one region less; after the last one it asks for its device."""
    state.tasks[v].pending -= 1
    return _hop(state.hops, tail, REQUEST, v) if state.tasks[v].pending == 0 else tail


@compiled
def _request(rules, state, tail, v, number):
    """Put op v into the queue of its device; ``number`` counts requests so far."""
    if rules.queue == QUEUE_FIFO:
        state.tasks[v].key = number
    d = state.tasks[v].resource
    state.resources[d].queue = insert(
        state.tasks, state.resources[d].queue, np.uint32(v), NONE, by_key
    )
    return _grant(state, tail, d)


@compiled
def _end(state, tail, v):
    """Handle that the time of an op is over: its stream is free, and all else follows."""
    d = state.tasks[v].resource
    state.resources[d].free += 1
    state.devices[d].busy &= ~(1 << state.tasks[v].stream)
    return _hop(state.hops, tail, FINISH, v)


@compiled
def _grant(state, tail, d):
    """Give device d to the next op, one op at a time as in SimPy."""
    v = state.resources[d].queue
    if state.resources[d].free > 0 and v != NONE:
        state.resources[d].queue = remove(state.tasks, v, NONE, by_key)
        state.resources[d].free -= 1
        state.tasks[v].stream = take_stream(state.devices, d)
        tail = _hop(state.hops, tail, GRANT, np.int64(v))
    return tail
