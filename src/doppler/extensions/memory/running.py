"""The engine that runs plans: work-conserving, with the queues of the simulator.

A task starts once all that it waits for has ended and its resource is free; which ready task goes
first is said by the rule of queues, as without a plan. FREE tasks take neither time nor resource.
Vocabulary and shape suffixes as in arrays.py.
"""

import numpy as np

from doppler.extensions.memory.arrays import (
    EVICT,
    FREE,
    LOAD,
    MOVE,
    NOTHING,
    NOWHERE,
    OP,
    RECOMPUTE,
    SLACK,
)
from doppler.extensions.memory.opening import open_plan
from doppler.extensions.memory.orders import OWN, order_ops
from doppler.extensions.memory.walk import walk
from doppler.problem.transfer_kernels import crosses_hosts
from doppler.simulator.copy_kernels import allocate
from doppler.simulator.queue_kernels import insert, remove
from doppler.simulator.state import (
    CONTENTION_ENGINES,
    CONTENTION_FIFO,
    CONTENTION_NONE,
    NONE,
    QUEUE_PRIORITY,
    QUEUE_RANDOM,
    QUEUE_STRICT,
    UNLIMITED,
    Rules,
)
from doppler.simulator.state_kernels import (
    free_interfaces,
    take_interfaces,
    take_stream,
    transfer_draw,
    transfer_seconds,
)
from doppler.simulator.work_conserving_kernels import ends_before, enqueue, simulate, take, touch
from doppler.support.compiled import compiled_apart
from doppler.support.compiled.draws import jitter, uniform

_CLEARS = 4000  # tasks that are walked over again where everything has to be evicted
_ENOUGH = 1.005  # times as long as without limits


@compiled_apart
def simulate_plan(p, rules, device_V, priority_V, seed, m):
    """Plan one placement, unless it is the last one's, and run the plan; see SimulatorSession.

    Returns the makespan in seconds. Where an op needs more than its device has there is no plan:
    the makespan is then that without limits, and the peak says what is needed.
    """
    if not _is_known(m, device_V, priority_V):
        nominal = Rules(rules.queue, rules.contention, rules.streams, 0.0, 0.0)
        seconds = make_plan(p, nominal, device_V, priority_V, m)
        if m.counts[0].is_known == 0:
            return seconds
    return run_plan(p, rules, device_V, seed, m)


@compiled_apart
def make_plan(p, rules, device_V, priority_V, m):
    """Plan a placement; without a plan the seconds that it takes without limits."""
    m.counts[0].is_known = 0
    seconds = _schedule(p, rules, device_V, priority_V, m)
    if seconds == np.inf or not _can_fit(m, device_V):
        return seconds
    best, best_seconds, last = NOTHING, np.inf, NOTHING
    m.counts[0].latest, clears = np.inf, 4 + _CLEARS // len(m.clears)
    for last in range(len(m.choices.tries)):
        made = _try(p, rules, device_V, priority_V, m, last, clears)
        if made < best_seconds:
            best, best_seconds = last, made
        if rules.contention != CONTENTION_NONE:  # copies of a device wait for each other
            m.counts[0].latest = best_seconds
        if made <= _ENOUGH * seconds:
            break
    m.counts[0].latest = np.inf
    if best == NOTHING:
        best, last, clears = 0, NOTHING, len(m.clears)
    if best != last and _try(p, rules, device_V, priority_V, m, best, clears) == np.inf:
        return np.inf
    for v in range(len(device_V)):
        m.device[v] = device_V[v]
        m.priority[v] = priority_V[v]
    m.counts[0].is_known = 1
    return seconds


@compiled_apart
def _try(p, rules, device_V, priority_V, m, number, clears):
    """Plan by a schedule without limits, and run the plan without jitter; inf if there is none.

    number: of the try, a row of `tries`. clears: so often at most a device is emptied.
    """
    one, is_strict = m.choices.tries[number], rules.queue == QUEUE_STRICT
    order, recomputes = np.int64(one[0]), one[4] != 0.0
    if is_strict and order != OWN:
        return np.inf
    for d in range(len(m.room)):
        m.room[d] = max(one[1] * m.machine.limit[d], m.devices[d].first)
    m.counts[0].ahead = np.int64(one[2])
    m.counts[0].patience = one[3]
    m.counts[0].clears = clears
    m.counts[0].recomputes = recomputes
    _schedule(p, rules, device_V, priority_V, m)
    if order != OWN:
        open_plan(m, p, is_strict)
        order_ops(m, p, order)
        other = Rules(QUEUE_PRIORITY, rules.contention, rules.streams, 0.0, 0.0)
        _schedule(p, other, device_V, m.sequence, m)
    if not walk(m, p, is_strict):
        m.counts[0].recomputes = 0  # between what is computed again there may be no room
        if not recomputes or not walk(m, p, is_strict):
            return np.inf
    _link_waits(m)
    return run_plan(p, rules, device_V, 0, m)


@compiled_apart
def _schedule(p, rules, device_V, priority_V, m):
    """Run a placement without limits, for the planner to go by; returns the seconds."""
    seconds = simulate(p, rules, device_V, priority_V, 0, m.free)
    for task in range(len(device_V) + m.free.num_transfers[0]):
        m.start[task] = m.free.tasks[task].start
        m.finish[task] = m.free.tasks[task].finish
    return seconds


@compiled_apart
def _is_known(m, device_V, priority_V):
    if m.counts[0].is_known == 0:
        return False
    for v in range(len(device_V)):
        if m.device[v] != device_V[v] or m.priority[v] != priority_V[v]:
            return False
    return True


@compiled_apart
def _can_fit(m, device_V):
    """Whether each op fits on its device by itself; the peaks say what is needed where not."""
    fits = True
    for d in range(len(m.devices)):
        m.devices[d].first = 0.0
    for v in range(len(device_V)):
        d = device_V[v]
        m.devices[d].first = max(m.devices[d].first, m.machine.need[v])
        fits = fits and m.machine.need[v] <= m.machine.limit[d] * (1.0 + SLACK)
    for d in range(len(m.devices)):
        m.devices[d].peak = min(m.devices[d].peak, max(m.machine.limit[d], m.devices[d].first))
    return fits


@compiled_apart
def _link_waits(m):
    """Of each task those that wait for it, and how many each waits for."""
    num_tasks, num_waits = m.counts[0].tasks, m.counts[0].waits
    for task in range(num_tasks + 1):
        m.wait_ptr[task] = 0
    for w in range(num_waits):
        m.wait_ptr[m.waits[w, 0] + 1] += 1
    for task in range(num_tasks):
        m.wait_ptr[task + 1] += m.wait_ptr[task]
        m.stack[task] = m.wait_ptr[task]
    for w in range(num_waits):
        task = m.waits[w, 0]
        m.waiting[m.stack[task]] = m.waits[w, 1]
        m.stack[task] += 1


@compiled_apart
def run_plan(p, rules, device_V, seed, m):
    """Run the plan; the schedule is left in `run`, the peaks in `devices`."""
    s, apart = m.run, m.machine.apart
    tasks = s.tasks
    _open_run(p, rules, seed, m)
    num_touched, running, num_done = 0, NONE, 0
    now, makespan = 0.0, 0.0
    for task in range(m.counts[0].tasks):
        if m.pending[task] == 0:
            num_touched = _begin(rules, m, now, np.uint32(task), num_touched)
    while True:
        while True:  # start whatever can start now
            task, num_touched = take(apart, rules, s, num_touched)
            if task == NONE:
                break
            num_touched = _start(p, rules, m, seed, now, np.int64(task), num_touched)
            running = insert(tasks, running, task, NONE, ends_before)
        if running == NONE:
            break
        now = tasks[running].finish
        while running != NONE and tasks[running].finish == now:  # retire whatever ends now
            task = running
            running = remove(tasks, running, NONE, ends_before)
            if task < len(device_V):
                num_done += 1
                makespan = now
            num_touched = _end(rules, m, now, np.int64(task), num_touched)
    for d in range(len(m.devices)):
        m.devices[d].peak = s.devices[d].peak
    return makespan if num_done == len(device_V) else np.inf


@compiled_apart
def _open_run(p, rules, seed, m):
    """Nothing has started, every resource is free, inputs are where the plan has them."""
    s, num_devices = m.run, len(m.devices)
    s.num_coupled[:] = 0
    for host in range(len(s.hosts)):
        s.hosts[host].sending = 0
        s.hosts[host].receiving = 0
    for d in range(2 * num_devices):
        s.devices[d].memory = 0.0
        s.devices[d].peak = 0.0
        s.devices[d].busy = 0
        s.devices[d].sending = 0
        s.devices[d].receiving = 0
    for c in range(len(s.resources)):
        resource = s.resources[c]
        resource.queue = NONE
        resource.touched = 0
        resource.coupled = 0
        if c < 2 * num_devices:
            resource.free = rules.streams
        else:
            resource.free = UNLIMITED if rules.contention == CONTENTION_NONE else 1
            src, dst = divmod(c - 2 * num_devices, 2 * num_devices)
            by_hosts = rules.contention == CONTENTION_FIFO and _crosses(m, src, dst)
            if by_hosts or rules.contention == CONTENTION_ENGINES:
                resource.coupled = 1
    for c in range(m.counts[0].copies):
        m.copies[c].left = m.copies[c].num_uses
        if m.copies[c].creator == NOTHING and (m.copies[c].left > 0 or m.copies[c].gone == 0):
            allocate(s.devices, m.copies[c].on, m.copies[c].bytes)
    for task in range(m.counts[0].tasks):
        m.pending[task] = 0
    for w in range(m.counts[0].waits):
        m.pending[m.waits[w, 1]] += 1
    for task in range(m.counts[0].tasks):
        _open_task(p, rules, seed, m, task)


@compiled_apart
def _crosses(m, src, dst):
    return crosses_hosts(m.machine.apart, src, dst)


@compiled_apart
def _open_task(p, rules, seed, m, k):
    """Its resource and key; until it starts, its finish is the seconds that it takes."""
    task, planned, num = m.run.tasks[k], m.planned[k], len(m.devices)
    kind, num_ops = planned.kind, len(p.op_seconds)
    task.number = k
    task.key = planned.key
    task.stream = 0
    task.next = NONE
    draw = num_ops + len(p.size) * num + k
    if kind == OP:
        task.resource = m.free.tasks[k].resource
        task.finish = p.op_seconds[k, m.free.tasks[k].resource]
        draw = k
        if rules.queue == QUEUE_STRICT:
            task.next = m.free.tasks[k].next
            if task.next != NONE:
                m.pending[task.next] += 1
    elif kind == MOVE:
        task.number = m.free.tasks[k].number
        task.source = m.free.tasks[k].source
        task.destination = m.free.tasks[k].destination
        draw = transfer_draw(p, task.number, task.destination)
    elif kind == RECOMPUTE:
        task.resource = m.copies[planned.made].on
        task.finish = planned.seconds
    elif kind == FREE:
        task.resource = NOWHERE
        task.finish = 0.0
    else:
        d = m.copies[planned.made].on
        task.source = d if kind == EVICT else num + d
        task.destination = num + d if kind == EVICT else d
        task.finish = planned.seconds
    if kind == MOVE or kind == EVICT or kind == LOAD:
        task.resource = 2 * num + np.int64(task.source) * 2 * num + np.int64(task.destination)
    noise = rules.op_noise if kind == OP or kind == RECOMPUTE else rules.transfer_noise
    if noise > 0.0 and kind != MOVE and kind != FREE:
        task.finish *= jitter(seed, draw, noise)
    if rules.queue == QUEUE_RANDOM:
        task.key = uniform(seed, -2 - draw)


@compiled_apart
def _start(p, rules, m, seed, now, task, num_touched):
    """A task starts on its resource, which is free; a strict order then lets the next op follow."""
    s, planned = m.run, m.planned[task]
    tasks, c = s.tasks, s.tasks[task].resource
    s.resources[c].free -= 1
    seconds = tasks[task].finish
    if planned.kind == OP or planned.kind == RECOMPUTE:
        tasks[task].stream = take_stream(s.devices, c)
        after = tasks[task].next
        if after != NONE:
            m.pending[after] -= 1
            if m.pending[after] == 0:
                num_touched = _begin(rules, m, now, after, num_touched)
    else:
        src, dst = np.int64(tasks[task].source), np.int64(tasks[task].destination)
        if planned.kind == MOVE:
            r = np.int64(tasks[task].number)
            seconds = transfer_seconds(p, rules, seed, r, src, dst)
            if rules.contention != CONTENTION_NONE and _crosses(m, src, dst):
                out, into = take_interfaces(m.machine.apart, s.hosts, src, dst)
                tasks[task].stream, tasks[task].inlet = out, into
        s.devices[src].sending += 1
        s.devices[dst].receiving += 1
    first = planned.made
    for c in range(first, first + planned.num_copies):
        allocate(s.devices, m.copies[c].on, m.copies[c].bytes)
    tasks[task].start = now
    tasks[task].finish = now + seconds
    return num_touched


@compiled_apart
def _end(rules, m, now, task, num_touched):
    """A task has ended: what it used or made for nobody is free, what waited for it may begin."""
    s, planned = m.run, m.planned[task]
    c = s.tasks[task].resource
    s.resources[c].free += 1
    if s.resources[c].coupled != 0:
        s.num_coupled[1] = 1
    elif s.resources[c].queue != NONE:
        num_touched = touch(s, c, num_touched)
    if planned.kind == OP or planned.kind == RECOMPUTE:
        s.devices[c].busy &= ~(1 << s.tasks[task].stream)
    else:
        src, dst = np.int64(s.tasks[task].source), np.int64(s.tasks[task].destination)
        s.devices[src].sending -= 1
        s.devices[dst].receiving -= 1
        if rules.contention != CONTENTION_NONE and _crosses(m, src, dst):
            out, into = s.tasks[task].stream, s.tasks[task].inlet
            free_interfaces(m.machine.apart, s.hosts, src, dst, out, into)
    link = planned.uses
    while link != NOTHING:
        _leave(m, m.links[link].read, 1)
        link = m.links[link].of_task
    for copy in range(planned.made, planned.made + planned.num_copies):
        if m.copies[copy].num_uses == 0:
            _leave(m, copy, 0)
    return _release(rules, m, now, task, num_touched)


@compiled_apart
def _leave(m, c, num):
    """A copy has so many uses less to come, and no room once there are none."""
    m.copies[c].left -= num
    if m.copies[c].left == 0 and m.copies[c].gone != 0:
        m.run.devices[m.copies[c].on].memory -= m.copies[c].bytes


@compiled_apart
def _begin(rules, m, now, task, num_touched):
    """A task waits for nothing any more: into its queue, or at once to its end."""
    if m.run.tasks[task].resource != NOWHERE:
        return enqueue(rules, m.run, now, task, num_touched)
    m.run.tasks[task].start = now
    m.run.tasks[task].finish = now
    return _release(rules, m, now, np.int64(task), num_touched)


@compiled_apart
def _release(rules, m, now, task, num_touched):
    """What waits for a task that has ended waits for one less; FREE tasks end at once."""
    size = 1
    m.stack[0] = task
    while size > 0:
        size -= 1
        done = m.stack[size]
        for w in range(m.wait_ptr[done], m.wait_ptr[done + 1]):
            other = m.waiting[w]
            m.pending[other] -= 1
            if m.pending[other] > 0:
                continue
            if m.run.tasks[other].resource == NOWHERE:
                m.run.tasks[other].start = now
                m.run.tasks[other].finish = now
                m.stack[size] = other
                size += 1
            else:
                num_touched = enqueue(rules, m.run, now, np.uint32(other), num_touched)
    return num_touched
