"""Compiled: the work-conserving engine, in which every free resource with a ready task starts one.

At every instant all tasks that end are retired first; then free resources take tasks. So the result
does not depend on the order in which simultaneous events are listed.

A transfer between hosts starts once its channel (with contention=engines: both engines) and an
outgoing and an incoming interface of the two hosts are free, and holds them until it ends. It takes
the first free interface of each host. Without contention it waits for none of them. Of transfers
that wait for one interface, the first by the rule of queues goes first; one that cannot start does
not block those after it.

With contention=sender a device brings its results to other devices itself, as a core does that
copies. It does so after the op and before its next one, one region after the other, by the priority
of their first readers if ops go by priority. It runs one task at a time; all devices are on one
host.

Vocabulary and dimensions as in state.py. Indices: v op, r region, e edge, d device, c resource, k
transfer as a task, i and j tasks, src and dst devices of a transfer.

Source: DOPPLER (Yao et al., ICLR 2026), work-conserving system; contention, hosts, priorities,
memory and jitter are ours.
"""

import numpy as np

from doppler.problem.transfer_kernels import crosses_hosts
from doppler.simulator.copy_kernels import allocate, free_reads, list_transfers, load_inputs
from doppler.simulator.queue_kernels import insert, remove
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
)
from doppler.simulator.state_kernels import (
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
from doppler.simulator.watching_kernels import note_end, note_memory, starts_too_late
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform


@compiled
def simulate(problem, rules, device_V, priority_V, seed, state, watch=None):
    """Run one placement.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        seed: of jitter and random queues.
        state: State of the engine; the schedule is left in ``state.tasks``.
        watch: notes of the run, see watching_kernels.py; None: no notes.

    Returns:
        The makespan in seconds; inf if an op cannot run where it is placed, or if a strict order
        waits for itself.
    """
    open_run(problem, rules, device_V, priority_V, seed, state)
    num_touched = 0
    for v in range(len(device_V)):
        if state.tasks[v].pending == 0:
            num_touched = enqueue(rules, state, 0.0, np.uint32(v), num_touched)
    return run(problem, rules, seed, state, NONE, num_touched, 0, 0.0, watch)


@compiled
def run(problem, rules, seed, state, running, num_touched, num_done, now, watch):
    """Run from one instant to the end.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        seed: of jitter and random queues.
        state: State of the engine; the schedule is left in ``state.tasks``.
        running: queue of running tasks by their end.
        num_touched: resources that may start a task.
        num_done: ops that have ended.
        now: the instant, in seconds.
        watch: notes, asked at every start and end of a task (resuming_kernels.py); or None.

    Returns:
        The makespan as `simulate` does.
    """
    tasks, num_ops, makespan = state.tasks, len(problem.op_seconds), now
    while True:
        while True:  # start whatever can start now
            task, num_touched = take(problem, rules, state, num_touched)
            if task == NONE:
                break
            num_touched = start_task(problem, rules, state, seed, now, task, num_touched)
            running = insert(tasks, running, task, NONE, ends_before)
            if watch is not None and task < num_ops and starts_too_late(tasks, task, now, watch):
                return np.inf
        if running == NONE:
            return makespan if num_done == num_ops else np.inf
        if watch is not None and tasks[running].finish > now:
            note_memory(state, watch.notes)
        now = tasks[running].finish
        while running != NONE and tasks[running].finish == now:  # retire whatever ends now
            task = running
            running = remove(tasks, running, NONE, ends_before)
            c = tasks[task].resource
            state.resources[c].free += 1
            if state.resources[c].coupled != 0:
                state.num_coupled[1] = 1
            elif state.resources[c].queue != NONE:
                num_touched = touch(state, c, num_touched)
            if task < num_ops:
                num_done += 1
                makespan = now
                num_touched = end_op(problem, rules, state, seed, now, task, num_touched)
            else:
                num_touched = end_transfer(problem, rules, state, now, task, num_touched)
            if watch is not None:
                note_end(state, task, watch.notes)


@compiled
def start_task(problem, rules, state, seed, now, task, num_touched):
    """Start a task on its free resource; a strict order then lets the next op follow.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        state: State of the engine.
        seed: of jitter.
        now: the instant, in seconds.
        task: op or transfer; its ``finish`` is set.
        num_touched: number of resources that may start a task.

    Returns:
        The new ``num_touched``.
    """
    tasks, devices, c = state.tasks, state.devices, state.tasks[task].resource
    state.resources[c].free -= 1
    if task < len(problem.op_seconds):
        seconds = tasks[task].finish
        tasks[task].stream = take_stream(devices, c)
        allocate(devices, c, output_bytes(problem, task))
        if rules.queue == QUEUE_STRICT and tasks[task].next != NONE:
            after = tasks[task].next
            tasks[after].pending -= 1
            if tasks[after].pending == 0:
                num_touched = enqueue(rules, state, now, after, num_touched)
    else:
        r, src, dst = tasks[task].number, tasks[task].source, tasks[task].destination
        seconds = transfer_seconds(problem, rules, seed, r, src, dst)
        tasks[task].stream = 0
        if rules.contention != CONTENTION_NONE and crosses_hosts(problem, src, dst):
            tasks[task].stream, tasks[task].inlet = take_interfaces(problem, state.hosts, src, dst)
        devices[src].sending += 1
        devices[dst].receiving += 1
        allocate(devices, dst, problem.region_bytes[r])
    tasks[task].start = now
    tasks[task].finish = now + seconds
    return num_touched


@compiled
def end_op(problem, rules, state, seed, now, v, num_touched):
    """End op v: its regions go to the devices that read them, and are available here.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        state: State of the engine.
        seed: of random queues.
        now: the instant, in seconds.
        v: op.
        num_touched: number of resources that may start a task.

    Returns:
        The new ``num_touched``.
    """
    num_ops, d = len(problem.op_seconds), state.tasks[v].resource
    state.devices[d].busy &= ~(1 << state.tasks[v].stream)
    free_reads(problem, state, v)
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        begin = num_ops + state.num_transfers[0]
        list_transfers(problem, r, state)
        end = num_ops + state.num_transfers[0]
        for k in range(begin, end):
            if rules.contention == CONTENTION_SENDER:
                num_touched = _send_first(rules, state, np.uint32(k), d, num_touched)
                continue
            if rules.queue == QUEUE_RANDOM:
                draw = transfer_draw(problem, r, state.tasks[k].destination)
                state.tasks[k].key = uniform(seed, -2 - draw)
            num_touched = enqueue(rules, state, now, np.uint32(k), num_touched)
        if state.uses[r] > end - begin:
            num_touched = _deliver(problem, rules, state, now, r, d, num_touched)
    return num_touched


@compiled
def _send_first(rules, state, k, d, num_touched):
    """Let device d, which has ended an op, make its transfer k before any other op.

    Its transfers are in the order of their first readers' keys, or as listed if these are not
    ranks.
    """
    state.tasks[k].resource = d
    if rules.queue != QUEUE_PRIORITY and rules.queue != QUEUE_STRICT:
        state.tasks[k].key = float(k)
    state.tasks[k].key -= BEFORE_OPS
    state.resources[d].queue = insert(state.tasks, state.resources[d].queue, k, NONE, by_key)
    return touch(state, d, num_touched)


@compiled
def end_transfer(problem, rules, state, now, task, num_touched):
    """End a transfer: its region has arrived, and the source may free it.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        state: State of the engine.
        now: the instant, in seconds.
        task: transfer.
        num_touched: number of resources that may start a task.

    Returns:
        The new ``num_touched``.
    """
    r, src, dst = state.tasks[task].number, state.tasks[task].source, state.tasks[task].destination
    state.devices[src].sending -= 1
    state.devices[dst].receiving -= 1
    if rules.contention != CONTENTION_NONE and crosses_hosts(problem, src, dst):
        free_interfaces(
            problem, state.hosts, src, dst, state.tasks[task].stream, state.tasks[task].inlet
        )
    state.uses[r] -= 1
    if state.uses[r] == 0:
        state.devices[src].memory -= problem.region_bytes[r]
    return _deliver(problem, rules, state, now, r, dst, num_touched)


@compiled
def ends_before(tasks, i, j):
    """Whether task i ends before task j."""
    return tasks[i].finish < tasks[j].finish


@compiled
def open_run(problem, rules, device_V, priority_V, seed, state):
    """Prepare a run: nothing has started, every resource is free.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        seed: of jitter and random queues.
        state: State of the engine.
    """
    tasks, devices = state.tasks, state.devices
    state.num_transfers[0] = 0
    open_resources(problem, rules, state)
    open_ops(problem, rules, device_V, priority_V, seed, tasks)
    load_inputs(problem, device_V, devices)
    if rules.queue == QUEUE_RANDOM:
        for v in range(len(device_V)):
            tasks[v].key = uniform(seed, -2 - v)
    elif rules.queue == QUEUE_STRICT:
        _chain_strictly(priority_V, tasks, devices, state.order)


@compiled
def open_resources(problem, rules, state):
    """Free all resources and empty their queues."""
    resources, devices = state.resources, state.devices
    state.num_coupled[:] = 0
    for host in range(len(state.hosts)):
        state.hosts[host].sending = 0
        state.hosts[host].receiving = 0
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
            by_hosts = rules.contention == CONTENTION_FIFO and crosses_hosts(problem, src, dst)
            if by_hosts or rules.contention == CONTENTION_ENGINES:
                resources[c].coupled = 1


@compiled
def _chain_strictly(priority_V, tasks, devices, order_V):
    """With a strict order, let an op also wait for the start of the op before it on its device."""
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
def _deliver(problem, rules, state, now, r, d, num_touched):
    """Record that region r is on device d: its readers there wait for one input less."""
    for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
        v = np.uint32(problem.consumers[e])
        if state.tasks[v].resource == d:
            state.tasks[v].pending -= 1
            if state.tasks[v].pending == 0:
                num_touched = enqueue(rules, state, now, v, num_touched)
    return num_touched


@compiled
def enqueue(rules, state, now, task, num_touched):
    """Put a ready task into the queue of its resource.

    The resource of an op is its device, that of a transfer its link (with contention=none nothing
    waits). `take` starts the first task of a queue once the resource is free.
    """
    if rules.queue == QUEUE_FIFO:
        state.tasks[task].key = now
    c = state.tasks[task].resource
    state.resources[c].queue = insert(state.tasks, state.resources[c].queue, task, NONE, by_key)
    if state.resources[c].coupled != 0:
        if state.resources[c].touched == 0:
            state.resources[c].touched = 1
            state.coupled[state.num_coupled[0]] = c
            state.num_coupled[0] += 1
        state.num_coupled[1] = 1
        return num_touched
    return touch(state, c, num_touched) if state.resources[c].free > 0 else num_touched


@compiled
def touch(state, c, num_touched):
    """List resource c as one that may start a task at this instant."""
    if state.resources[c].touched == 0:
        state.resources[c].touched = 1
        state.touched[num_touched] = c
        num_touched += 1
    return num_touched


@compiled
def take(problem, rules, state, num_touched):
    """Remove the next op or transfer that can start now from its queue; NONE if there is none.

    Queues of busy resources stay as they are: their tasks wait.
    """
    resources = state.resources
    while num_touched > 0:
        c = state.touched[num_touched - 1]
        if resources[c].free > 0 and resources[c].queue != NONE:
            return _take_first(state, c), num_touched
        num_touched -= 1
        resources[c].touched = 0
    return _take_coupled(problem, rules, state), 0


@compiled
def _take_coupled(problem, rules, state):
    """Take the best startable transfer of those that wait for more than their channel."""
    if state.num_coupled[1] == 0:
        return NONE
    best, i, num = NONE, 0, state.num_coupled[0]
    while i < num:
        c = state.coupled[i]
        task = state.resources[c].queue
        if task == NONE:
            num -= 1
            state.coupled[i] = state.coupled[num]
            state.resources[c].touched = 0
            continue
        if _can_move(problem, rules, state, task) and (
            best == NONE or _moves_first(state.tasks, task, best)
        ):
            best = task
        i += 1
    state.num_coupled[0] = num
    if best == NONE:
        state.num_coupled[1] = 0
        return NONE
    return _take_first(state, state.tasks[best].resource)


@compiled
def _can_move(problem, rules, state, task):
    """Whether everything is free that a transfer of a coupled channel needs."""
    src, dst = state.tasks[task].source, state.tasks[task].destination
    if state.resources[state.tasks[task].resource].free == 0:
        return False
    engines = rules.contention == CONTENTION_ENGINES
    if engines and (state.devices[src].sending > 0 or state.devices[dst].receiving > 0):
        return False
    return not crosses_hosts(problem, src, dst) or can_cross(problem, state.hosts, src, dst)


@compiled
def _moves_first(tasks, i, j):
    """Whether transfer i goes before transfer j of another channel."""
    if by_key(tasks, i, j):
        return True
    return not by_key(tasks, j, i) and tasks[i].resource < tasks[j].resource


@compiled
def _take_first(state, c):
    """Remove the first task from the queue of resource c."""
    first = state.resources[c].queue
    state.resources[c].queue = remove(state.tasks, first, NONE, by_key)
    return first
