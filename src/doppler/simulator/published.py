"""The semantics of the published simulator, its order of simultaneous events included.

Transfers never contend; local edges are events without delay. Events of one instant are served
first in, first out, and a finished op reaches the queue of its consumer's device over a chain of
such events (finish, edge, join, request), a transfer that arrives over a shorter one. That chain
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
    load_inputs,
    plan_tasks,
)

# Kinds of events without delay; an event is kind + KINDS * (op, edge or device).
RELEASE, FINISH, EDGE, JOIN, REQUEST, GRANT, END, KINDS = 0, 1, 2, 3, 4, 5, 6, 7
COSTS_PER_SECOND = 1e10


@compiled
def simulate(p, rules, device_V, priority_V, seed, s):
    """Run one placement; arguments and result as in work_conserving.simulate."""
    tasks, resources, devices = s.tasks, s.resources, s.devices
    queues, events, hops, arrival = s.queues, s.events, s.hops, s.arrival
    num_ops, num_devices = p.op_seconds.shape
    num_transfers = plan_tasks(p, device_V, priority_V, s)
    load_inputs(p, device_V, devices)
    for d in range(num_devices):
        resources[d].free = rules.streams
        devices[d].busy = 0
    ring, head, tail = len(hops), 0, 0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            tail = _hop(hops, tail, REQUEST, v)
    # Timed events carry their number in the order of scheduling, which breaks ties: the task of
    # an entry is sequence * (V + E) + event, event v < V the end of op v, V + e an arrival.
    span = num_ops + len(p.consumers)
    sequence, num_events, num_requests, num_done = 0, 0, 0, 0
    now, makespan = 0.0, 0.0
    while head != tail or num_events > 0:
        if head == tail:
            now = events[0].key
            while num_events > 0 and events[0].key == now:
                event = heap_pop(events, 0, num_events) % span
                num_events -= 1
                if event < num_ops:
                    tail = _end_op(tasks, resources, devices, hops, tail, event)
                else:
                    tail = _hop(hops, tail, JOIN, event - num_ops)
            continue
        kind, x = hops[head] % KINDS, hops[head] // KINDS
        head = (head + 1) % ring
        device = -1
        if kind == FINISH:
            num_done += 1
            makespan = now
            src = tasks[x].resource
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
                        tail = _hop(hops, tail, EDGE, e)
                    else:
                        heap_push(events, 0, num_events, arrival[e], sequence * span + num_ops + e)
                        num_events += 1
                        sequence += 1
        elif kind == EDGE:
            tail = _hop(hops, tail, JOIN, x)
        elif kind == JOIN:
            v = p.consumers[x]
            tasks[v].pending -= 1
            if tasks[v].pending == 0:
                tail = _hop(hops, tail, REQUEST, v)
        elif kind == REQUEST:
            device = tasks[x].resource
            key = tasks[x].key if rules.queue == QUEUE_PRIORITY else float(num_requests)
            heap_push(queues, resources[device].queue, resources[device].size, key, x)
            resources[device].size += 1
            num_requests += 1
        elif kind == RELEASE:
            device = x
        elif kind == END:
            tail = _end_op(tasks, resources, devices, hops, tail, x)
        else:  # GRANT
            seconds = p.op_seconds[x, tasks[x].resource]
            if rules.op_noise > 0.0:
                seconds *= jitter(seed, x, rules.op_noise)
            tasks[x].start = now
            tasks[x].finish = now + np.rint(seconds * COSTS_PER_SECOND)
            if tasks[x].finish == now:
                tail = _hop(hops, tail, END, x)
            else:
                heap_push(events, 0, num_events, tasks[x].finish, sequence * span + x)
                num_events += 1
                sequence += 1
        if device >= 0 and resources[device].free > 0 and resources[device].size > 0:
            # One op a request and one a release, as in SimPy, also when several streams are free.
            v = heap_pop(queues, resources[device].queue, resources[device].size)
            resources[device].size -= 1
            resources[device].free -= 1
            stream = 0
            while (devices[device].busy >> stream) & 1:
                stream += 1
            devices[device].busy |= 1 << stream
            tasks[v].stream = stream
            tail = _hop(hops, tail, GRANT, v)
    for k in range(num_ops, num_ops + num_transfers):
        # Without contention the edges of one region to one device coincide: one transfer.
        r = tasks[k].region
        tasks[k].start = tasks[p.region_src[r]].finish
        tasks[k].stream = 0
        for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            if tasks[p.consumers[e]].resource == (tasks[k].resource - num_devices) % num_devices:
                tasks[k].finish = arrival[e]
    for k in range(num_ops + num_transfers):
        tasks[k].start /= COSTS_PER_SECOND
        tasks[k].finish /= COSTS_PER_SECOND
    return makespan / COSTS_PER_SECOND if num_done == num_ops else np.inf


@compiled
def _hop(hops, tail, kind, x):
    hops[tail] = KINDS * x + kind
    return (tail + 1) % len(hops)


@compiled
def _end_op(tasks, resources, devices, hops, tail, v):
    """An op has ended: its device is free, and two events without delay follow."""
    d = tasks[v].resource
    resources[d].free += 1
    devices[d].busy &= ~(1 << tasks[v].stream)
    return _hop(hops, _hop(hops, tail, RELEASE, d), FINISH, v)
