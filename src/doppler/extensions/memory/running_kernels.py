"""Compiled: the engine that simulates plans; it is work-conserving, with the simulator's queues.

A task starts once all tasks that it waits for have ended and its resource is free. The rule of the
queues decides which ready task goes first, as without a plan. FREE tasks take neither time nor a
resource.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.
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
from doppler.extensions.memory.opening_kernels import open_plan
from doppler.extensions.memory.orders_kernels import OWN, order_ops
from doppler.extensions.memory.walk_kernels import walk
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

_MAX_CLEARED_TASKS = 4000  # tasks visited again by walks that empty devices
_GOOD_ENOUGH = 1.005  # planning ends at this multiple of the makespan without limits


@compiled_apart
def simulate_plan(problem, rules, device_V, priority_V, seed, plan):
    """Plan a placement, unless it was the last one planned, and simulate the plan.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        seed: of jitter and random queues.
        plan: PlanState, changed.

    Returns:
        The makespan in seconds. If an op needs more memory than its device has, there is no plan;
        then it is the makespan without limits, and the peak is the memory needed.
    """
    if not _is_known(plan, device_V, priority_V):
        nominal = Rules(rules.queue, rules.contention, rules.streams, 0.0, 0.0)
        seconds = make_plan(problem, nominal, device_V, priority_V, plan)
        if plan.counts[0].is_known == 0:
            return seconds
    return run_plan(problem, rules, device_V, seed, plan)


@compiled_apart
def make_plan(problem, rules, device_V, priority_V, plan):
    """Plan a placement: try the settings of `tries` and keep the best plan.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, without jitter.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        plan: PlanState, changed; ``is_known`` says whether there is a plan.

    Returns:
        The makespan without memory limits, in seconds; inf if the placement never finishes or
        cannot be planned again.
    """
    plan.counts[0].is_known = 0
    seconds = _schedule(problem, rules, device_V, priority_V, plan)
    if seconds == np.inf or not _can_fit(plan, device_V):
        return seconds
    best, best_seconds, last = NOTHING, np.inf, NOTHING
    plan.counts[0].latest, clears = np.inf, 4 + _MAX_CLEARED_TASKS // len(plan.clears)
    for last in range(len(plan.choices.tries)):
        made = _try(problem, rules, device_V, priority_V, plan, last, clears)
        if made < best_seconds:
            best, best_seconds = last, made
        if rules.contention != CONTENTION_NONE:  # a device's loads run one after another
            plan.counts[0].latest = best_seconds
        if made <= _GOOD_ENOUGH * seconds:
            break
    plan.counts[0].latest = np.inf
    if best == NOTHING:
        best, last, clears = 0, NOTHING, len(plan.clears)
    if best != last and _try(problem, rules, device_V, priority_V, plan, best, clears) == np.inf:
        return np.inf
    for v in range(len(device_V)):
        plan.device[v] = device_V[v]
        plan.priority[v] = priority_V[v]
    plan.counts[0].is_known = 1
    return seconds


@compiled_apart
def _try(problem, rules, device_V, priority_V, plan, number, clears):
    """Plan with the settings in row ``number`` of `tries`, and simulate the plan without jitter.

    At most ``clears`` tasks may have devices emptied before them. Returns seconds; inf without a
    plan.
    """
    row, is_strict = plan.choices.tries[number], rules.queue == QUEUE_STRICT
    order, recomputes = np.int64(row[0]), row[4] != 0.0
    if is_strict and order != OWN:
        return np.inf
    for d in range(len(plan.budget)):
        plan.budget[d] = max(row[1] * plan.machine.limit[d], plan.devices[d].first)
    plan.counts[0].ahead = np.int64(row[2])
    plan.counts[0].patience = row[3]
    plan.counts[0].clears = clears
    plan.counts[0].recomputes = recomputes
    _schedule(problem, rules, device_V, priority_V, plan)
    if order != OWN:
        open_plan(plan, problem, is_strict)
        order_ops(plan, problem, order)
        other = Rules(QUEUE_PRIORITY, rules.contention, rules.streams, 0.0, 0.0)
        _schedule(problem, other, device_V, plan.sequence, plan)
    if not walk(plan, problem, is_strict):
        plan.counts[0].recomputes = 0  # recomputations may leave no room: plan without them
        if not recomputes or not walk(plan, problem, is_strict):
            return np.inf
    link_waits(plan)
    return run_plan(problem, rules, device_V, 0, plan)


@compiled_apart
def _schedule(problem, rules, device_V, priority_V, plan):
    """Simulate a placement without memory limits, as the schedule to plan by.

    Returns the makespan in seconds.
    """
    seconds = simulate(problem, rules, device_V, priority_V, 0, plan.free)
    for task in range(len(device_V) + plan.free.num_transfers[0]):
        plan.start[task] = plan.free.tasks[task].start
        plan.finish[task] = plan.free.tasks[task].finish
    return seconds


@compiled_apart
def _is_known(plan, device_V, priority_V):
    if plan.counts[0].is_known == 0:
        return False
    for v in range(len(device_V)):
        if plan.device[v] != device_V[v] or plan.priority[v] != priority_V[v]:
            return False
    return True


@compiled_apart
def _can_fit(plan, device_V):
    """Whether each op alone fits on its device; if not, the peaks are the memory needed."""
    fits = True
    for d in range(len(plan.devices)):
        plan.devices[d].first = 0.0
    for v in range(len(device_V)):
        d = device_V[v]
        plan.devices[d].first = max(plan.devices[d].first, plan.machine.need[v])
        fits = fits and plan.machine.need[v] <= plan.machine.limit[d] * (1.0 + SLACK)
    for d in range(len(plan.devices)):
        plan.devices[d].peak = min(
            plan.devices[d].peak, max(plan.machine.limit[d], plan.devices[d].first)
        )
    return fits


@compiled_apart
def link_waits(plan):
    """List the tasks that wait for each task.

    Args:
        plan: PlanState, changed.
    """
    num_tasks, num_waits = plan.counts[0].tasks, plan.counts[0].waits
    for task in range(num_tasks + 1):
        plan.wait_ptr[task] = 0
    for i in range(num_waits):
        plan.wait_ptr[plan.waits[i, 0] + 1] += 1
    for task in range(num_tasks):
        plan.wait_ptr[task + 1] += plan.wait_ptr[task]
        plan.stack[task] = plan.wait_ptr[task]
    for i in range(num_waits):
        task = plan.waits[i, 0]
        plan.waiting[plan.stack[task]] = plan.waits[i, 1]
        plan.stack[task] += 1


@compiled_apart
def run_plan(problem, rules, device_V, seed, plan):
    """Simulate the plan; its schedule is left in `run`, the peaks in `devices`.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        seed: of jitter and random queues.
        plan: PlanState, changed.

    Returns:
        The makespan in seconds; inf if tasks wait for each other.
    """
    state, apart = plan.run, plan.machine.apart
    tasks = state.tasks
    _open_run(problem, rules, seed, plan)
    num_touched, running, num_done = 0, NONE, 0
    now, makespan = 0.0, 0.0
    for task in range(plan.counts[0].tasks):
        if plan.pending[task] == 0:
            num_touched = _begin(rules, plan, now, np.uint32(task), num_touched)
    while True:
        while True:  # start whatever can start now
            task, num_touched = take(apart, rules, state, num_touched)
            if task == NONE:
                break
            num_touched = _start(problem, rules, plan, seed, now, np.int64(task), num_touched)
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
            num_touched = _end(rules, plan, now, np.int64(task), num_touched)
    for d in range(len(plan.devices)):
        plan.devices[d].peak = state.devices[d].peak
    return makespan if num_done == len(device_V) else np.inf


@compiled_apart
def _open_run(problem, rules, seed, plan):
    """Reset the run: nothing has started, resources are free, inputs are as planned."""
    state, num_devices = plan.run, len(plan.devices)
    state.num_coupled[:] = 0
    for host in range(len(state.hosts)):
        state.hosts[host].sending = 0
        state.hosts[host].receiving = 0
    for d in range(2 * num_devices):
        state.devices[d].memory = 0.0
        state.devices[d].peak = 0.0
        state.devices[d].busy = 0
        state.devices[d].sending = 0
        state.devices[d].receiving = 0
    for c in range(len(state.resources)):
        resource = state.resources[c]
        resource.queue = NONE
        resource.touched = 0
        resource.coupled = 0
        if c < 2 * num_devices:
            resource.free = rules.streams
        else:
            resource.free = UNLIMITED if rules.contention == CONTENTION_NONE else 1
            src, dst = divmod(c - 2 * num_devices, 2 * num_devices)
            by_hosts = rules.contention == CONTENTION_FIFO and _crosses(plan, src, dst)
            if by_hosts or rules.contention == CONTENTION_ENGINES:
                resource.coupled = 1
    for c in range(plan.counts[0].copies):
        plan.copies[c].left = plan.copies[c].num_uses
        if plan.copies[c].creator == NOTHING and (
            plan.copies[c].left > 0 or plan.copies[c].gone == 0
        ):
            allocate(state.devices, plan.copies[c].on, plan.copies[c].bytes)
    for task in range(plan.counts[0].tasks):
        plan.pending[task] = 0
    for w in range(plan.counts[0].waits):
        plan.pending[plan.waits[w, 1]] += 1
    for task in range(plan.counts[0].tasks):
        _open_task(problem, rules, seed, plan, task)


@compiled_apart
def _crosses(plan, src, dst):
    return crosses_hosts(plan.machine.apart, src, dst)


@compiled_apart
def _open_task(problem, rules, seed, plan, k):
    """Set a task's resource and key; until the task starts, its finish holds its duration."""
    task, planned, num = plan.run.tasks[k], plan.planned[k], len(plan.devices)
    kind, num_ops = planned.kind, len(problem.op_seconds)
    task.number = k
    task.key = planned.key
    task.stream = 0
    task.next = NONE
    draw = num_ops + len(problem.size) * num + k
    if kind == OP:
        task.resource = plan.free.tasks[k].resource
        task.finish = problem.op_seconds[k, plan.free.tasks[k].resource]
        draw = k
        if rules.queue == QUEUE_STRICT:
            task.next = plan.free.tasks[k].next
            if task.next != NONE:
                plan.pending[task.next] += 1
    elif kind == MOVE:
        task.number = plan.free.tasks[k].number
        task.source = plan.free.tasks[k].source
        task.destination = plan.free.tasks[k].destination
        draw = transfer_draw(problem, task.number, task.destination)
    elif kind == RECOMPUTE:
        task.resource = plan.copies[planned.made].on
        task.finish = planned.seconds
    elif kind == FREE:
        task.resource = NOWHERE
        task.finish = 0.0
    else:
        d = plan.copies[planned.made].on
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
def _start(problem, rules, plan, seed, now, task, num_touched):
    """Start a task on a free resource; with strict order this lets the device's next op follow."""
    state, planned = plan.run, plan.planned[task]
    tasks, c = state.tasks, state.tasks[task].resource
    state.resources[c].free -= 1
    seconds = tasks[task].finish
    if planned.kind == OP or planned.kind == RECOMPUTE:
        tasks[task].stream = take_stream(state.devices, c)
        after = tasks[task].next
        if after != NONE:
            plan.pending[after] -= 1
            if plan.pending[after] == 0:
                num_touched = _begin(rules, plan, now, after, num_touched)
    else:
        src, dst = np.int64(tasks[task].source), np.int64(tasks[task].destination)
        if planned.kind == MOVE:
            r = np.int64(tasks[task].number)
            seconds = transfer_seconds(problem, rules, seed, r, src, dst)
            if rules.contention != CONTENTION_NONE and _crosses(plan, src, dst):
                out, into = take_interfaces(plan.machine.apart, state.hosts, src, dst)
                tasks[task].stream, tasks[task].inlet = out, into
        state.devices[src].sending += 1
        state.devices[dst].receiving += 1
    first = planned.made
    for c in range(first, first + planned.num_copies):
        allocate(state.devices, plan.copies[c].on, plan.copies[c].bytes)
    tasks[task].start = now
    tasks[task].finish = now + seconds
    return num_touched


@compiled_apart
def _end(rules, plan, now, task, num_touched):
    """End a task: release its resource and copies, and let the tasks that wait for it begin."""
    state, planned = plan.run, plan.planned[task]
    c = state.tasks[task].resource
    state.resources[c].free += 1
    if state.resources[c].coupled != 0:
        state.num_coupled[1] = 1
    elif state.resources[c].queue != NONE:
        num_touched = touch(state, c, num_touched)
    if planned.kind == OP or planned.kind == RECOMPUTE:
        state.devices[c].busy &= ~(1 << state.tasks[task].stream)
    else:
        src, dst = np.int64(state.tasks[task].source), np.int64(state.tasks[task].destination)
        state.devices[src].sending -= 1
        state.devices[dst].receiving -= 1
        if rules.contention != CONTENTION_NONE and _crosses(plan, src, dst):
            out, into = state.tasks[task].stream, state.tasks[task].inlet
            free_interfaces(plan.machine.apart, state.hosts, src, dst, out, into)
    link = planned.uses
    while link != NOTHING:
        _leave(plan, plan.links[link].read, 1)
        link = plan.links[link].of_task
    for copy in range(planned.made, planned.made + planned.num_copies):
        if plan.copies[copy].num_uses == 0:
            _leave(plan, copy, 0)
    return _release(rules, plan, now, task, num_touched)


@compiled_apart
def _leave(plan, c, num):
    """Count down the remaining uses of a copy, and release its memory at the last one."""
    plan.copies[c].left -= num
    if plan.copies[c].left == 0 and plan.copies[c].gone != 0:
        plan.run.devices[plan.copies[c].on].memory -= plan.copies[c].bytes


@compiled_apart
def _begin(rules, plan, now, task, num_touched):
    """Queue a task that waits for nothing any more; a FREE task ends at once."""
    if plan.run.tasks[task].resource != NOWHERE:
        return enqueue(rules, plan.run, now, task, num_touched)
    plan.run.tasks[task].start = now
    plan.run.tasks[task].finish = now
    return _release(rules, plan, now, np.int64(task), num_touched)


@compiled_apart
def _release(rules, plan, now, task, num_touched):
    """Let the tasks that wait for a task, and for no other, begin; FREE tasks end at once."""
    size = 1
    plan.stack[0] = task
    while size > 0:
        size -= 1
        done = plan.stack[size]
        for i in range(plan.wait_ptr[done], plan.wait_ptr[done + 1]):
            other = plan.waiting[i]
            plan.pending[other] -= 1
            if plan.pending[other] > 0:
                continue
            if plan.run.tasks[other].resource == NOWHERE:
                plan.run.tasks[other].start = now
                plan.run.tasks[other].finish = now
                plan.stack[size] = other
                size += 1
            else:
                num_touched = enqueue(rules, plan.run, now, np.uint32(other), num_touched)
    return num_touched
