"""The work-conserving engine: whenever a resource is free and has a ready task, one starts.

At every instant all tasks that end are retired first, then free resources take tasks: so the
result does not depend on the order in which simultaneous events are listed. Vocabulary and shape
suffixes as in state.py.

A transfer between hosts starts once its channel (with contention=engines: both engines) and an
outgoing and an incoming interface of the two hosts are free, and holds them until it ends; it takes
the first free interface of each host. Without contention it waits for none of them. Of transfers
that wait for one interface the first by the rule of queues goes first, and one that cannot start
keeps nothing from those after it.

With contention=sender a device itself brings what it has made to others, as a core does that
copies: after the op, before its next one, one region after the other, by the priority of their
first readers where ops go by priority. It runs one task at a time, and knows no hosts.

Source: DOPPLER (Yao et al., ICLR 2026), work-conserving system; contention, hosts, priorities,
memory and jitter are ours.
"""

import numpy as np

from doppler.problem.arrays import crosses_hosts
from doppler.simulator.copies import allocate, free_reads, list_transfers, load_inputs
from doppler.simulator.queues import insert, remove
from doppler.simulator.state import (
    BEFORE_OPS,
    CONTENTION_ENGINES,
    CONTENTION_FIFO,
    CONTENTION_NONE,
    CONTENTION_SENDER,
    NONE,
    QUEUE_FIFO,
    QUEUE_PRIORITY,
    QUEUE_RANDOM,
    QUEUE_STRICT,
    UNLIMITED,
    by_key,
    can_cross,
    free_interfaces,
    open_ops,
    output_bytes,
    take_interfaces,
    take_stream,
    transfer_draw,
    transfer_seconds,
)
from doppler.simulator.watching import note_end, note_memory, starts_too_late
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform


@compiled
def simulate(p, rules, device_V, priority_V, seed, s, watch=None):
    """Run one placement; the schedule is left in the state ``s``.

    p: ProblemArrays. rules: Rules. device_V, priority_V: [V]. seed: of jitter and random queues.
    watch: what is noted, see watching.py; None: nothing.

    Returns the makespan in seconds; inf if an op cannot run where it is placed, or if a strict
    order waits for itself.
    """
    _open(p, rules, device_V, priority_V, seed, s)
    num_touched = 0
    for v in range(len(device_V)):
        if s.tasks[v].pending == 0:
            num_touched = enqueue(rules, s, 0.0, np.uint32(v), num_touched)
    return run(p, rules, seed, s, NONE, num_touched, 0, 0.0, watch)


@compiled
def run(p, rules, seed, s, running, num_touched, num_done, now, watch):
    """From one instant to the end; returns the makespan as `simulate` does.

    running: queue of tasks by their end. num_touched: resources that may start something.
    num_done: ops that have ended. now: the instant. watch: what is asked at every start and end of
    a task (resuming.py), or None.
    """
    tasks, num_ops, makespan = s.tasks, len(p.op_seconds), now
    while True:
        while True:  # start whatever can start now
            task, num_touched = take(p, rules, s, num_touched)
            if task == NONE:
                break
            num_touched = _start(p, rules, s, seed, now, task, num_touched)
            running = insert(tasks, running, task, NONE, ends_before)
            if watch is not None and task < num_ops and starts_too_late(tasks, task, now, watch):
                return np.inf
        if running == NONE:
            return makespan if num_done == num_ops else np.inf
        if watch is not None and tasks[running].finish > now:
            note_memory(s, watch.notes)
        now = tasks[running].finish
        while running != NONE and tasks[running].finish == now:  # retire whatever ends now
            task = running
            running = remove(tasks, running, NONE, ends_before)
            c = tasks[task].resource
            s.resources[c].free += 1
            if s.resources[c].coupled != 0:
                s.num_coupled[1] = 1
            elif s.resources[c].queue != NONE:
                num_touched = touch(s, c, num_touched)
            if task < num_ops:
                num_done += 1
                makespan = now
                num_touched = _end_op(p, rules, s, seed, now, task, num_touched)
            else:
                num_touched = _end_transfer(p, rules, s, now, task, num_touched)
            if watch is not None:
                note_end(s, task, watch.notes)


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
                num_touched = enqueue(rules, s, now, after, num_touched)
    else:
        r, src, dst = tasks[task].number, tasks[task].source, tasks[task].destination
        seconds = transfer_seconds(p, rules, seed, r, src, dst)
        tasks[task].stream = 0
        if rules.contention != CONTENTION_NONE and crosses_hosts(p, src, dst):
            tasks[task].stream, tasks[task].inlet = take_interfaces(p, s.hosts, src, dst)
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
            if rules.contention == CONTENTION_SENDER:
                num_touched = _send_first(rules, s, np.uint32(k), d, num_touched)
                continue
            if rules.queue == QUEUE_RANDOM:
                draw = transfer_draw(p, r, s.tasks[k].destination)
                s.tasks[k].key = uniform(seed, -2 - draw)
            num_touched = enqueue(rules, s, now, np.uint32(k), num_touched)
        if s.uses[r] > end - begin:
            num_touched = _deliver(p, rules, s, now, r, d, num_touched)
    return num_touched


@compiled
def _send_first(rules, s, k, d, num_touched):
    """Device d, which has ended an op, is to make its transfer k before any other op.

    By the key of its first reader; as they are listed where that is no rank.
    """
    s.tasks[k].resource = d
    if rules.queue != QUEUE_PRIORITY and rules.queue != QUEUE_STRICT:
        s.tasks[k].key = float(k)
    s.tasks[k].key -= BEFORE_OPS
    s.resources[d].queue = insert(s.tasks, s.resources[d].queue, k, NONE, by_key)
    return touch(s, d, num_touched)


@compiled
def _end_transfer(p, rules, s, now, task, num_touched):
    """A region has arrived; its source may forget it."""
    r, src, dst = s.tasks[task].number, s.tasks[task].source, s.tasks[task].destination
    s.devices[src].sending -= 1
    s.devices[dst].receiving -= 1
    if rules.contention != CONTENTION_NONE and crosses_hosts(p, src, dst):
        free_interfaces(p, s.hosts, src, dst, s.tasks[task].stream, s.tasks[task].inlet)
    s.uses[r] -= 1
    if s.uses[r] == 0:
        s.devices[src].memory -= p.region_bytes[r]
    return _deliver(p, rules, s, now, r, dst, num_touched)


@compiled
def ends_before(tasks, i, j):
    """Whether task i ends before task j."""
    return tasks[i].finish < tasks[j].finish


@compiled
def _open(p, rules, device_V, priority_V, seed, s):
    """Prepare a run: nothing has started, every resource is free."""
    tasks, devices = s.tasks, s.devices
    s.num_transfers[0] = 0
    open_resources(p, rules, s)
    open_ops(p, rules, device_V, priority_V, seed, tasks)
    load_inputs(p, device_V, devices)
    if rules.queue == QUEUE_RANDOM:
        for v in range(len(device_V)):
            tasks[v].key = uniform(seed, -2 - v)
    elif rules.queue == QUEUE_STRICT:
        _chain_strictly(priority_V, tasks, devices, s.order)


@compiled
def open_resources(p, rules, s):
    """Every resource is free, and nothing waits for it."""
    resources, devices = s.resources, s.devices
    s.num_coupled[:] = 0
    for host in range(len(s.hosts)):
        s.hosts[host].sending = 0
        s.hosts[host].receiving = 0
    for c in range(len(resources)):
        resources[c].queue = NONE
        resources[c].touched = 0
        resources[c].coupled = 0
        if c < len(devices):
            resources[c].free = rules.streams
            devices[c].busy = 0
            devices[c].sending = 0
            devices[c].receiving = 0
            devices[c].last = 0
        else:
            resources[c].free = UNLIMITED if rules.contention == CONTENTION_NONE else 1
            src, dst = divmod(c - len(devices), len(devices))
            by_hosts = rules.contention == CONTENTION_FIFO and crosses_hosts(p, src, dst)
            if by_hosts or rules.contention == CONTENTION_ENGINES:
                resources[c].coupled = 1


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
                num_touched = enqueue(rules, s, now, v, num_touched)
    return num_touched


@compiled
def enqueue(rules, s, now, task, num_touched):
    """A task is ready: into the queue of its resource."""
    if rules.queue == QUEUE_FIFO:
        s.tasks[task].key = now
    c = s.tasks[task].resource
    s.resources[c].queue = insert(s.tasks, s.resources[c].queue, task, NONE, by_key)
    if s.resources[c].coupled != 0:
        if s.resources[c].touched == 0:
            s.resources[c].touched = 1
            s.coupled[s.num_coupled[0]] = c
            s.num_coupled[0] += 1
        s.num_coupled[1] = 1
        return num_touched
    return touch(s, c, num_touched) if s.resources[c].free > 0 else num_touched


@compiled
def touch(s, c, num_touched):
    """Resource c may start a task at this instant."""
    if s.resources[c].touched == 0:
        s.resources[c].touched = 1
        s.touched[num_touched] = c
        num_touched += 1
    return num_touched


@compiled
def take(p, rules, s, num_touched):
    """The next task that can start now, taken from its queue, or NONE."""
    resources = s.resources
    while num_touched > 0:
        c = s.touched[num_touched - 1]
        if resources[c].free > 0 and resources[c].queue != NONE:
            return _take_first(s, c), num_touched
        num_touched -= 1
        resources[c].touched = 0
    return _take_coupled(p, rules, s), 0


@compiled
def _take_coupled(p, rules, s):
    """Of the transfers that wait for more than their channel, the best one that can start now."""
    if s.num_coupled[1] == 0:
        return NONE
    best, i, num = NONE, 0, s.num_coupled[0]
    while i < num:
        c = s.coupled[i]
        task = s.resources[c].queue
        if task == NONE:
            num -= 1
            s.coupled[i] = s.coupled[num]
            s.resources[c].touched = 0
            continue
        if _can_move(p, rules, s, task) and (best == NONE or _moves_first(s.tasks, task, best)):
            best = task
        i += 1
    s.num_coupled[0] = num
    if best == NONE:
        s.num_coupled[1] = 0
        return NONE
    return _take_first(s, s.tasks[best].resource)


@compiled
def _can_move(p, rules, s, task):
    """Whether all that a transfer of a coupled channel holds while it runs is free."""
    src, dst = s.tasks[task].source, s.tasks[task].destination
    if s.resources[s.tasks[task].resource].free == 0:
        return False
    engines = rules.contention == CONTENTION_ENGINES
    if engines and (s.devices[src].sending > 0 or s.devices[dst].receiving > 0):
        return False
    return not crosses_hosts(p, src, dst) or can_cross(p, s.hosts, src, dst)


@compiled
def _moves_first(tasks, i, j):
    """Whether transfer i goes before transfer j of another channel."""
    if by_key(tasks, i, j):
        return True
    return not by_key(tasks, j, i) and tasks[i].resource < tasks[j].resource


@compiled
def _take_first(s, c):
    """The first task of the queue of resource c, taken out of it."""
    first = s.resources[c].queue
    s.resources[c].queue = remove(s.tasks, first, NONE, by_key)
    return first
