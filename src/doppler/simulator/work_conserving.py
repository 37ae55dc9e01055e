"""The work-conserving engine: whenever a resource is free and has a ready task, one starts.

At every instant all tasks that end are retired first, then free resources take tasks: so the
result does not depend on the order in which simultaneous events are listed. Vocabulary and shape
suffixes as in state.py.

Source: DOPPLER (Yao et al., ICLR 2026), work-conserving system; contention, priorities, memory
and jitter are ours.
"""

import numpy as np

from doppler.compilation import compiled
from doppler.simulator.state import (
    CONTENTION_ENGINES,
    CONTENTION_NONE,
    QUEUE_FIFO,
    QUEUE_RANDOM,
    QUEUE_STRICT,
    UNLIMITED,
    allocate,
    free_reads,
    heap_pop,
    heap_push,
    jitter,
    load_inputs,
    output_bytes,
    plan_tasks,
    take_stream,
    uniform,
)


@compiled
def simulate(p, rules, device_V, priority_V, seed, s):
    """Run one placement; the schedule is left in the state ``s``.

    p: ProblemArrays. rules: Rules. device_V, priority_V: [V]. seed: of jitter and random queues.

    Returns the makespan in seconds; inf if an op cannot run where it is placed, or if a strict
    order waits for itself.
    """
    tasks, regions, resources, devices = s.tasks, s.regions, s.resources, s.devices
    queues, events, touched = s.queues, s.events, s.touched
    num_ops, num_devices = p.op_seconds.shape
    num_tasks = num_ops + plan_tasks(p, device_V, priority_V, s)
    load_inputs(p, device_V, devices)
    _open_resources(rules, num_devices, resources, devices)
    if rules.queue == QUEUE_RANDOM:
        for k in range(num_tasks):
            tasks[k].key = uniform(seed, -2 - k)
    elif rules.queue == QUEUE_STRICT:
        _chain_strictly(priority_V, tasks, devices, s.order)

    num_touched, num_events, num_done = 0, 0, 0
    now, makespan = 0.0, 0.0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            num_touched = _enqueue(
                rules.queue, now, v, tasks, resources, queues, touched, num_touched
            )
    while True:
        while True:  # start whatever can start now
            task, num_touched = _take(
                rules.contention, resources, devices, queues, touched, num_touched
            )
            if task < 0:
                break
            c = tasks[task].resource
            resources[c].free -= 1
            if task < num_ops:
                seconds, draw = p.op_seconds[task, c], task
                if rules.op_noise > 0.0:
                    seconds *= jitter(seed, draw, rules.op_noise)
                tasks[task].stream = take_stream(devices, c)
                allocate(devices, c, output_bytes(p, task))
                if rules.queue == QUEUE_STRICT and tasks[task].next >= 0:
                    after = tasks[task].next
                    tasks[after].pending -= 1
                    if tasks[after].pending == 0:
                        num_touched = _enqueue(
                            rules.queue, now, after, tasks, resources, queues, touched, num_touched
                        )
            else:
                r, dst = tasks[task].region, tasks[task].destination
                src = tasks[p.region_src[r]].resource
                seconds = p.latency_s[src, dst] + p.size[r] * p.seconds_per_size[src, dst]
                if rules.transfer_noise > 0.0:
                    draw = num_ops + r * num_devices + dst
                    seconds *= jitter(seed, draw, rules.transfer_noise)
                tasks[task].stream = 0
                devices[src].sending += 1
                devices[dst].receiving += 1
                allocate(devices, dst, p.region_bytes[r])
            tasks[task].start = now
            tasks[task].finish = now + seconds
            heap_push(events, 0, num_events, now + seconds, task)
            num_events += 1
        if num_events == 0:
            return makespan if num_done == num_ops else np.inf
        now = events[0].key
        while num_events > 0 and events[0].key == now:  # retire whatever ends now
            task = heap_pop(events, 0, num_events)
            num_events -= 1
            c = tasks[task].resource
            resources[c].free += 1
            num_touched = _touch(c, resources, touched, num_touched)
            if task < num_ops:
                num_done += 1
                makespan = now
                devices[c].busy &= ~(1 << tasks[task].stream)
                free_reads(p, tasks, regions, devices, task)
                for r in range(p.region_ptr[task], p.region_ptr[task + 1]):
                    for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                        v = p.consumers[i]
                        if tasks[v].resource == c:
                            tasks[v].pending -= 1
                            if tasks[v].pending == 0:
                                num_touched = _enqueue(
                                    rules.queue,
                                    now,
                                    v,
                                    tasks,
                                    resources,
                                    queues,
                                    touched,
                                    num_touched,
                                )
                    for t in range(regions[r].transfers, regions[r].transfers_end):
                        num_touched = _enqueue(
                            rules.queue, now, t, tasks, resources, queues, touched, num_touched
                        )
            else:
                r, dst = tasks[task].region, tasks[task].destination
                src = tasks[p.region_src[r]].resource
                devices[src].sending -= 1
                devices[dst].receiving -= 1
                regions[r].uses -= 1
                if regions[r].uses == 0:
                    devices[src].memory -= p.region_bytes[r]
                for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    v = p.consumers[i]
                    if tasks[v].resource == dst:
                        tasks[v].pending -= 1
                        if tasks[v].pending == 0:
                            num_touched = _enqueue(
                                rules.queue, now, v, tasks, resources, queues, touched, num_touched
                            )


@compiled
def _open_resources(rules, num_devices, resources, devices):
    for c in range(len(resources)):
        if c < num_devices:
            resources[c].free = rules.streams
            devices[c].busy = 0
            devices[c].sending = 0
            devices[c].receiving = 0
        else:
            resources[c].free = UNLIMITED if rules.contention == CONTENTION_NONE else 1


@compiled
def _chain_strictly(priority_V, tasks, devices, order_V):
    """Strict order: an op waits, beside its inputs, for the op before it on its device to start."""
    for d in range(len(devices)):
        devices[d].count = -1
    for v in range(len(priority_V)):
        order_V[priority_V[v]] = v
    for v in order_V:
        d = tasks[v].resource
        before = devices[d].count
        tasks[v].next = -1
        if before >= 0:
            tasks[before].next = v
            tasks[v].pending += 1
        devices[d].count = v
    for d in range(len(devices)):
        devices[d].count = 0


@compiled
def _touch(c, resources, touched, num_touched):
    if resources[c].touched == 0:
        resources[c].touched = 1
        touched[num_touched] = c
        num_touched += 1
    return num_touched


@compiled
def _enqueue(queue, now, task, tasks, resources, queues, touched, num_touched):
    """A task is ready: into the queue of its resource."""
    key = now if queue == QUEUE_FIFO else tasks[task].key
    c = tasks[task].resource
    heap_push(queues, resources[c].queue, resources[c].size, key, task)
    resources[c].size += 1
    return _touch(c, resources, touched, num_touched)


@compiled
def _take(contention, resources, devices, queues, touched, num_touched):
    """The next task that can start now, taken from its queue, or -1."""
    num_devices = len(devices)
    while num_touched > 0:
        c = touched[num_touched - 1]
        by_engine = contention == CONTENTION_ENGINES and c >= num_devices
        if resources[c].free > 0 and resources[c].size > 0 and not by_engine:
            task = heap_pop(queues, resources[c].queue, resources[c].size)
            resources[c].size -= 1
            return task, num_touched
        num_touched -= 1
        resources[c].touched = 0
    if contention != CONTENTION_ENGINES:
        return -1, 0
    # A transfer holds its sender's and its receiver's engine: the best one that finds both free.
    best = -1
    for src in range(num_devices):
        if devices[src].sending > 0:
            continue
        for dst in range(num_devices):
            c = num_devices + src * num_devices + dst
            if devices[dst].receiving > 0 or resources[c].size == 0:
                continue
            if best < 0:
                best = c
                continue
            i, j = resources[c].queue, resources[best].queue
            if queues[i].key < queues[j].key or (
                queues[i].key == queues[j].key and queues[i].task < queues[j].task
            ):
                best = c
    if best < 0:
        return -1, 0
    task = heap_pop(queues, resources[best].queue, resources[best].size)
    resources[best].size -= 1
    return task, 0
