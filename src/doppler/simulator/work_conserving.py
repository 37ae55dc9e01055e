"""The work-conserving engine: whenever a resource is free and has a ready task, one starts.

At every instant all tasks that end are retired first, then free resources take tasks: so the
result does not depend on the order in which simultaneous events are listed. Vocabulary and shape
suffixes as in state.py.

Source: DOPPLER (Yao et al., ICLR 2026), work-conserving system; contention, priorities, memory
and jitter are ours.
"""

import numpy as np

from doppler.compiled import compiled
from doppler.compiled.draws import uniform
from doppler.simulator.copies import allocate, free_reads, list_transfers, load_inputs
from doppler.simulator.queues import insert, remove
from doppler.simulator.state import (
    CONTENTION_ENGINES,
    CONTENTION_NONE,
    NONE,
    QUEUE_FIFO,
    QUEUE_RANDOM,
    QUEUE_STRICT,
    UNLIMITED,
    by_key,
    open_ops,
    output_bytes,
    take_stream,
    transfer_draw,
    transfer_seconds,
)


@compiled
def simulate(p, rules, device_V, priority_V, seed, s):
    """Run one placement; the schedule is left in the state ``s``.

    p: ProblemArrays. rules: Rules. device_V, priority_V: [V]. seed: of jitter and random queues.

    Returns the makespan in seconds; inf if an op cannot run where it is placed, or if a strict
    order waits for itself.
    """
    tasks, num_ops = s.tasks, len(device_V)
    _open(p, rules, device_V, priority_V, seed, s)
    num_touched, running, num_done = 0, NONE, 0
    now, makespan = 0.0, 0.0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            num_touched = _enqueue(rules, s, now, np.uint32(v), num_touched)
    while True:
        while True:  # start whatever can start now
            task, num_touched = _take(rules, s, num_touched)
            if task == NONE:
                break
            num_touched = _start(p, rules, s, seed, now, task, num_touched)
            running = insert(tasks, running, task, NONE, _ends_before)
        if running == NONE:
            return makespan if num_done == num_ops else np.inf
        now = tasks[running].finish
        while running != NONE and tasks[running].finish == now:  # retire whatever ends now
            task = running
            running = remove(tasks, running, NONE, _ends_before)
            c = tasks[task].resource
            s.resources[c].free += 1
            if s.resources[c].queue != NONE:
                num_touched = _touch(s, c, num_touched)
            if task < num_ops:
                num_done += 1
                makespan = now
                num_touched = _end_op(p, rules, s, seed, now, task, num_touched)
            else:
                num_touched = _end_transfer(p, rules, s, now, task, num_touched)


@compiled
def _start(p, rules, s, seed, now, task, num_touched):
    """A task starts on its resource, which is free; a strict order then lets the next op follow."""
    tasks, devices, c = s.tasks, s.devices, s.tasks[task].resource
    s.resources[c].free -= 1
    if task < len(p.op_seconds):
        seconds = tasks[task].finish
        tasks[task].stream = take_stream(devices, c)
        allocate(devices, c, output_bytes(p, task))
        if rules.queue == QUEUE_STRICT and tasks[task].next != NONE:
            after = tasks[task].next
            tasks[after].pending -= 1
            if tasks[after].pending == 0:
                num_touched = _enqueue(rules, s, now, after, num_touched)
    else:
        r, src, dst = tasks[task].number, tasks[task].source, tasks[task].destination
        seconds = transfer_seconds(p, rules, seed, r, src, dst)
        tasks[task].stream = 0
        devices[src].sending += 1
        devices[dst].receiving += 1
        allocate(devices, dst, p.region_bytes[r])
    tasks[task].start = now
    tasks[task].finish = now + seconds
    return num_touched


@compiled
def _end_op(p, rules, s, seed, now, v, num_touched):
    """Op v has ended: its regions are sent to the devices that read them, and are read here."""
    num_ops, d = len(p.op_seconds), s.tasks[v].resource
    s.devices[d].busy &= ~(1 << s.tasks[v].stream)
    free_reads(p, s, v)
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        begin = num_ops + s.num_transfers[0]
        list_transfers(p, r, s)
        end = num_ops + s.num_transfers[0]
        for k in range(begin, end):
            if rules.queue == QUEUE_RANDOM:
                draw = transfer_draw(p, r, s.tasks[k].destination)
                s.tasks[k].key = uniform(seed, -2 - draw)
            num_touched = _enqueue(rules, s, now, np.uint32(k), num_touched)
        if s.uses[r] > end - begin:
            num_touched = _deliver(p, rules, s, now, r, d, num_touched)
    return num_touched


@compiled
def _end_transfer(p, rules, s, now, task, num_touched):
    """A region has arrived; its source may forget it."""
    r, src, dst = s.tasks[task].number, s.tasks[task].source, s.tasks[task].destination
    s.devices[src].sending -= 1
    s.devices[dst].receiving -= 1
    s.uses[r] -= 1
    if s.uses[r] == 0:
        s.devices[src].memory -= p.region_bytes[r]
    return _deliver(p, rules, s, now, r, dst, num_touched)


@compiled
def _ends_before(tasks, i, j):
    """Whether task i ends before task j."""
    return tasks[i].finish < tasks[j].finish


@compiled
def _open(p, rules, device_V, priority_V, seed, s):
    """Prepare a run: nothing has started, every resource is free."""
    tasks, resources, devices = s.tasks, s.resources, s.devices
    s.num_transfers[0] = 0
    open_ops(p, rules, device_V, priority_V, seed, tasks)
    load_inputs(p, device_V, devices)
    if rules.queue == QUEUE_RANDOM:
        for v in range(len(device_V)):
            tasks[v].key = uniform(seed, -2 - v)
    elif rules.queue == QUEUE_STRICT:
        _chain_strictly(priority_V, tasks, devices, s.order)
    for c in range(len(resources)):
        resources[c].queue = NONE
        resources[c].touched = 0
        if c < len(devices):
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
        devices[d].last = NONE
    for v in range(len(priority_V)):
        order_V[priority_V[v]] = v
    for v in order_V:
        d = tasks[v].resource
        before = devices[d].last
        tasks[v].next = NONE
        if before != NONE:
            tasks[before].next = v
            tasks[v].pending += 1
        devices[d].last = v
    for d in range(len(devices)):
        devices[d].last = 0


@compiled
def _deliver(p, rules, s, now, r, d, num_touched):
    """Region r is on device d: its readers there wait for one input less."""
    for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
        v = np.uint32(p.consumers[e])
        if s.tasks[v].resource == d:
            s.tasks[v].pending -= 1
            if s.tasks[v].pending == 0:
                num_touched = _enqueue(rules, s, now, v, num_touched)
    return num_touched


@compiled
def _enqueue(rules, s, now, task, num_touched):
    """A task is ready: into the queue of its resource."""
    if rules.queue == QUEUE_FIFO:
        s.tasks[task].key = now
    c = s.tasks[task].resource
    s.resources[c].queue = insert(s.tasks, s.resources[c].queue, task, NONE, by_key)
    return _touch(s, c, num_touched) if s.resources[c].free > 0 else num_touched


@compiled
def _touch(s, c, num_touched):
    """Resource c may start a task at this instant."""
    if s.resources[c].touched == 0:
        s.resources[c].touched = 1
        s.touched[num_touched] = c
        num_touched += 1
    return num_touched


@compiled
def _take(rules, s, num_touched):
    """The next task that can start now, taken from its queue, or NONE."""
    resources, devices = s.resources, s.devices
    while num_touched > 0:
        c = s.touched[num_touched - 1]
        by_engine = rules.contention == CONTENTION_ENGINES and c >= len(devices)
        if resources[c].free > 0 and resources[c].queue != NONE and not by_engine:
            return _take_first(s, c), num_touched
        num_touched -= 1
        resources[c].touched = 0
    if rules.contention != CONTENTION_ENGINES:
        return NONE, 0
    # A transfer holds its sender's and its receiver's engine: the best one that finds both free.
    best = NONE
    for src in range(len(devices)):
        if devices[src].sending > 0:
            continue
        for dst in range(len(devices)):
            c = len(devices) + src * len(devices) + dst
            task = resources[c].queue
            if task == NONE or devices[dst].receiving > 0:
                continue
            if best == NONE or by_key(s.tasks, task, best):
                best = task
    if best == NONE:
        return NONE, 0
    return _take_first(s, s.tasks[best].resource), 0


@compiled
def _take_first(s, c):
    """The first task of the queue of resource c, taken out of it."""
    first = s.resources[c].queue
    s.resources[c].queue = remove(s.tasks, first, NONE, by_key)
    return first
