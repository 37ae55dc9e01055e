"""The semantics of the published simulator, its order of simultaneous events included.

Transfers never contend; local edges are events without delay. Events of one instant are served
first in, first out, and a finished op reaches the queue of its consumer's device over a chain of
such events (finish, local, join, request), a transfer that arrives over a shorter one. That chain
decides which of two ops that become ready at the same time is served first, so it is kept.

Source: released code of DOPPLER (Yao et al., ICLR 2026), semantics as observed; the event
mechanism is that of SimPy. Time is counted, as there, in whole costs of 1e-10 s: in seconds, sums
of the same costs in another order would no longer be simultaneous. With ``queue=priority`` a
device takes the waiting op of the best priority instead of the one that asked first. Vocabulary
and shape suffixes as in state.py.
"""

import numpy as np

from doppler.compilation import compiled
from doppler.simulator.state import (
    QUEUE_PRIORITY,
    heap_pop,
    heap_push,
    jitter,
    plan_tasks,
    take_stream,
)

# What an event is: an edge arrives, an op ends, tells its consumers, reaches the local ones (two
# steps), asks for its device, gets it. As a number: kind + (op or edge) << KIND_BITS.
ARRIVE, END, FINISH, LOCAL, JOIN, REQUEST, GRANT = 0, 1, 2, 3, 4, 5, 6
KIND_BITS, KIND_MASK = 3, 7
# Timed events carry their number in the order of scheduling, which breaks ties: the task of a heap
# entry is event + sequence << EVENT_BITS.
EVENT_BITS = 32
COSTS_PER_SECOND = 1e10


@compiled
def simulate(p, rules, device_V, priority_V, seed, s):
    """Run one placement; arguments and result as in work_conserving.simulate.

    It leaves times in costs and no transfers: `complete` makes the schedule of it.
    """
    tasks, resources, devices = s.tasks, s.resources, s.devices
    queues, events, hops, arrival = s.queues, s.events, s.hops, s.arrival
    num_ops, num_devices = p.op_seconds.shape
    _open_devices(p, rules, device_V, priority_V, tasks, resources, devices)
    head, tail = 0, 0  # the events of this instant are hops[head:tail]
    for v in range(num_ops):
        if tasks[v].pending == 0:
            tail = _hop(hops, tail, REQUEST, v)
    sequence, num_events, num_requests, num_done = 0, 0, 0, 0
    now, makespan = 0.0, 0.0
    while head < tail or num_events > 0:
        if head == tail:
            head, tail = 0, 0
            now = events[0].key
            while num_events > 0 and events[0].key == now:
                event = heap_pop(events, 0, num_events) & ((1 << EVENT_BITS) - 1)
                num_events -= 1
                if event & KIND_MASK == END:
                    tail = _end(tasks, resources, devices, hops, tail, event >> KIND_BITS)
                else:
                    tail = _hop(hops, tail, ARRIVE, event >> KIND_BITS)
        kind, x = hops[head] & KIND_MASK, hops[head] >> KIND_BITS
        head += 1
        # Where nothing else waits, the event that follows another needs no queue: `kind` becomes
        # what it is, and one of the branches below goes on with it.
        if kind == ARRIVE:
            x = p.consumers[x]
            tasks[x].pending -= 1
            if tasks[x].pending == 0:
                if head == tail:
                    kind = REQUEST
                else:
                    tail = _hop(hops, tail, REQUEST, x)
        elif kind == END:
            tail = _end(tasks, resources, devices, hops, tail, x)
        elif kind == FINISH:
            num_done += 1
            makespan = now
            src = tasks[x].resource
            tail = _grant(tasks, resources, devices, queues, hops, tail, src)
            any_local = False
            for r in range(p.region_ptr[x], p.region_ptr[x + 1]):
                for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    dst = tasks[p.consumers[e]].resource
                    arrival[e] = now
                    if dst != src:
                        seconds = p.latency_s[src, dst] + p.size[r] * p.seconds_per_size[src, dst]
                        if rules.transfer_noise > 0.0:
                            draw = num_ops + r * num_devices + dst
                            seconds *= jitter(seed, draw, rules.transfer_noise)
                        arrival[e] += np.rint(seconds * COSTS_PER_SECOND)
                    if arrival[e] == now:
                        any_local = True
                    else:
                        event = (sequence << EVENT_BITS) + (e << KIND_BITS) + ARRIVE
                        heap_push(events, 0, num_events, arrival[e], event)
                        num_events += 1
                        sequence += 1
            if any_local:
                tail = _hop(hops, tail, LOCAL, x)
        elif kind == LOCAL:
            if head == tail:
                kind = JOIN
            else:
                tail = _hop(hops, tail, JOIN, x)
        if kind == JOIN:
            for r in range(p.region_ptr[x], p.region_ptr[x + 1]):
                for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    if arrival[e] == now:
                        v = p.consumers[e]
                        tasks[v].pending -= 1
                        if tasks[v].pending == 0:
                            tail = _hop(hops, tail, REQUEST, v)
        elif kind == REQUEST:
            d = tasks[x].resource
            if head == tail and resources[d].free > 0 and resources[d].size == 0:
                resources[d].free -= 1
                tasks[x].stream = take_stream(devices, d)
                kind = GRANT
            else:
                key = tasks[x].key if rules.queue == QUEUE_PRIORITY else float(num_requests)
                heap_push(queues, resources[d].queue, resources[d].size, key, x)
                resources[d].size += 1
                num_requests += 1
                tail = _grant(tasks, resources, devices, queues, hops, tail, d)
        if kind == GRANT:
            seconds = p.op_seconds[x, tasks[x].resource]
            if rules.op_noise > 0.0:
                seconds *= jitter(seed, x, rules.op_noise)
            tasks[x].start = now
            tasks[x].finish = now + np.rint(seconds * COSTS_PER_SECOND)
            if tasks[x].finish == now:
                tail = _hop(hops, tail, END, x)
            else:
                event = (sequence << EVENT_BITS) + (x << KIND_BITS) + END
                heap_push(events, 0, num_events, tasks[x].finish, event)
                num_events += 1
                sequence += 1
    return makespan / COSTS_PER_SECOND if num_done == num_ops else np.inf


@compiled
def complete(p, device_V, priority_V, s):
    """After `simulate`: add the transfers, and put all times into seconds.

    Without contention the edges of one region to one device coincide: they are one transfer.
    """
    tasks = s.tasks
    num_ops, num_tasks = len(device_V), len(device_V) + plan_tasks(p, device_V, priority_V, s)
    for k in range(num_ops, num_tasks):
        r = tasks[k].region
        tasks[k].start = tasks[p.region_src[r]].finish
        tasks[k].stream = 0
        for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            if device_V[p.consumers[e]] == tasks[k].destination:
                tasks[k].finish = s.arrival[e]
    for k in range(num_tasks):
        tasks[k].start /= COSTS_PER_SECOND
        tasks[k].finish /= COSTS_PER_SECOND


@compiled
def _open_devices(p, rules, device_V, priority_V, tasks, resources, devices):
    for d in range(len(devices)):
        resources[d].queue = 0
        resources[d].size = 0
        resources[d].free = rules.streams
        devices[d].busy = 0
    for v in range(len(device_V)):
        tasks[v].resource = device_V[v]
        tasks[v].key = priority_V[v]
        tasks[v].pending = p.read_ptr[v + 1] - p.read_ptr[v]
        resources[device_V[v]].queue += 1
    place = 0
    for d in range(len(devices)):
        place, resources[d].queue = place + resources[d].queue, place


@compiled
def _hop(hops, tail, kind, x):
    hops[tail] = (x << KIND_BITS) + kind
    return tail + 1


@compiled
def _end(tasks, resources, devices, hops, tail, v):
    """The time of an op is over: its stream is free, all else follows."""
    d = tasks[v].resource
    resources[d].free += 1
    devices[d].busy &= ~(1 << tasks[v].stream)
    return _hop(hops, tail, FINISH, v)


@compiled
def _grant(tasks, resources, devices, queues, hops, tail, d):
    """Give device d to the op that is next; one op at a time, as SimPy does it."""
    if resources[d].free > 0 and resources[d].size > 0:
        v = heap_pop(queues, resources[d].queue, resources[d].size)
        resources[d].size -= 1
        resources[d].free -= 1
        tasks[v].stream = take_stream(devices, d)
        tail = _hop(hops, tail, GRANT, v)
    return tail
