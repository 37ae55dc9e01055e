"""Compiled: the work-conserving engine if tasks that run at the same time share resources.

Devices, channels and interfaces take tasks as in work_conserving_kernels.py. In addition, a machine
declares shared resources. Running tasks use them at max-min fair rates, which change whenever a
task begins or ends to use one (see problem/sharing.py). A transfer uses them once its latency is
over.

A task that always runs at full speed ends exactly when that engine says: its end is moved only when
its rate changes.

Vocabulary and dimensions as in state.py and sharing.py. Indices: v op, d device, k shared resource,
c user of shared resources, i position in the list of running tasks, n position among uses.

Source: max-min fair sharing as SimGrid does by default, Casanova, Giersch, Legrand, Quinson, Suter,
"Versatile, scalable, and accurate simulation of distributed applications and platforms", JPDC 2014.
"""

import numpy as np

from doppler.problem.sharing import ROUNDING
from doppler.problem.transfer_kernels import sized_seconds
from doppler.simulator.state import NONE
from doppler.simulator.work_conserving_kernels import (
    end_op,
    end_transfer,
    enqueue,
    open_run,
    start_task,
    take,
    touch,
)
from doppler.support.compiled import compiled

# Ends of slowed tasks that differ only by rounding are one instant.
_SAME_INSTANT = 1e-12


@compiled
def simulate(problem, rules, device_V, priority_V, seed, state):
    """Run one placement.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        seed: of jitter and random queues.
        state: SharingState; the schedule is left in ``state.tasks``.

    Returns:
        The makespan in seconds; inf if an op cannot run where it is placed, or if a strict order
        waits for itself.
    """
    base, tasks, num_ops = state.base, state.tasks, len(device_V)
    open_run(problem, rules, device_V, priority_V, seed, base)
    num_touched = 0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            num_touched = enqueue(rules, base, 0.0, np.uint32(v), num_touched)
    now, makespan, num_done, num_running, changed = 0.0, 0.0, 0, 0, False
    while True:
        while True:  # start whatever can start now
            task, num_touched = take(problem, rules, base, num_touched)
            if task == NONE:
                break
            num_touched = start_task(problem, rules, base, seed, now, task, num_touched)
            _prepare(problem, state, task, now)
            state.running[num_running] = task
            num_running += 1
        changed |= _join(state, num_running, now)
        if changed:
            _share(state, num_running, now)
            changed = False
        if num_running == 0:
            return makespan if num_done == num_ops else np.inf
        now = _next_instant(state, num_running)
        i = 0
        while i < num_running:  # retire whatever ends now
            task = state.running[i]
            if not _ends(state, task, now):
                i += 1
                continue
            num_running -= 1
            state.running[i] = state.running[num_running]
            tasks[task].finish = now
            changed |= state.weight[task] > 0.0
            c = tasks[task].resource
            base.resources[c].free += 1
            if base.resources[c].coupled != 0:
                base.num_coupled[1] = 1
            elif base.resources[c].queue != NONE:
                num_touched = touch(base, c, num_touched)
            if task < num_ops:
                num_done += 1
                makespan = now
                num_touched = end_op(problem, rules, base, seed, now, task, num_touched)
            else:
                num_touched = end_transfer(problem, rules, base, now, task, num_touched)


@compiled
def _prepare(problem, state, task, now):
    """Prepare a task that has started: when it begins to use shared resources, and how much."""
    sharing, record = state.sharing, state.tasks[task]
    state.rate[task] = 1.0
    state.weight[task] = 0.0
    state.slowed[task] = False
    state.joins[task] = np.inf
    num_ops, num_devices = sharing.op_bytes.shape
    if task < num_ops:
        c = np.int64(record.resource)
        state.moved[task] = sharing.op_bytes[task, c]
        state.processed[task] = sharing.op_processors[task, c]
        begins_s = now
    else:
        src, dst = record.source, record.destination
        c = num_devices + np.int64(src) * num_devices + np.int64(dst)
        latency_s = problem.latency_s[src, dst]
        moving_s = sized_seconds(problem, record.number, src, dst)
        if moving_s <= 0.0:
            return
        jittered = (record.finish - now) / (latency_s + moving_s)  # 1 without jitter
        state.moved[task] = sharing.region_bytes[record.number] / (moving_s * jittered)
        state.processed[task] = 0.0
        begins_s = now + latency_s * jittered
    state.first_use[task] = sharing.use_ptr[c]
    state.end_use[task] = sharing.use_ptr[c + 1]
    if state.first_use[task] < state.end_use[task] and record.finish > now:
        state.joins[task] = begins_s


@compiled
def _join(state, num_running, now):
    """Let tasks begin to use shared resources when it is time; return whether any does."""
    any_joins = False
    for i in range(num_running):
        task = state.running[i]
        if state.joins[task] <= now:
            state.joins[task] = np.inf
            for n in range(state.first_use[task], state.end_use[task]):
                demand = _demand(state, task, state.sharing.uses[n])
                state.weight[task] = max(state.weight[task], demand)
            any_joins |= state.weight[task] > 0.0
    return any_joins


@compiled
def _demand(state, task, k):
    """How much of shared resource k a task uses at full speed."""
    return state.moved[task] if state.sharing.moves_bytes[k] else state.processed[task]


@compiled
def _next_instant(state, num_running):
    """When the next task ends, or begins to use shared resources."""
    soonest = np.inf
    for i in range(num_running):
        task = state.running[i]
        soonest = min(soonest, state.tasks[task].finish, state.joins[task])
    return soonest


@compiled
def _ends(state, task, now):
    """Whether a task ends at this instant."""
    finish = state.tasks[task].finish
    return finish <= now or (state.slowed[task] and finish <= now * (1.0 + _SAME_INSTANT))


@compiled
def _share(state, num_running, now):
    """Compute the rates of all running tasks from now on; their ends move if rates change."""
    if _all_fit(state, num_running):
        for i in range(num_running):
            _set_rate(state, state.running[i], 1.0, now)
        return
    num_left = 0
    for i in range(num_running):
        state.goal[state.running[i]] = 0.0
        if state.weight[state.running[i]] > 0.0:
            num_left += 1
    for k in range(len(state.left)):
        state.left[k] = state.sharing.capacity[k]
    level = 0.0
    while num_left > 0:
        level, full, least = _rise(state, num_running, level)
        for i in range(num_running):
            task = state.running[i]
            if state.weight[task] == 0.0 or state.goal[task] > 0.0:
                continue
            if state.weight[task] <= level:
                rate = 1.0
            elif least > level and _is_user(state, task, full):
                rate = level / state.weight[task]
            else:
                continue
            num_left -= 1
            state.goal[task] = rate
            for n in range(state.first_use[task], state.end_use[task]):
                k = state.sharing.uses[n]
                state.left[k] -= _demand(state, task, k) * rate
    for i in range(num_running):
        task = state.running[i]
        if state.weight[task] > 0.0:
            _set_rate(state, task, state.goal[task], now)


@compiled
def _all_fit(state, num_running):
    """Whether all tasks can run at full speed."""
    state.used[:] = 0.0
    for i in range(num_running):
        task = state.running[i]
        if state.weight[task] > 0.0:
            for n in range(state.first_use[task], state.end_use[task]):
                k = state.sharing.uses[n]
                state.used[k] += _demand(state, task, k)
    for k in range(len(state.used)):
        if state.used[k] > state.sharing.capacity[k] * (1.0 + ROUNDING):
            return False
    return True


@compiled
def _rise(state, num_running, level):
    """How far the speeds that are not fixed yet rise together.

    Returns:
        The level, the resource that is full there, and the smallest weight that still rises; it is
        at most the level if a task has reached its full speed.
    """
    state.used[:] = 0.0
    least, reached, full = np.inf, np.inf, -1
    for i in range(num_running):
        task = state.running[i]
        if state.weight[task] > 0.0 and state.goal[task] == 0.0:
            least = min(least, state.weight[task])
            for n in range(state.first_use[task], state.end_use[task]):
                k = state.sharing.uses[n]
                state.used[k] += _demand(state, task, k) / state.weight[task]
    for k in range(len(state.used)):
        if state.used[k] > 0.0 and state.left[k] / state.used[k] < reached:
            full, reached = k, state.left[k] / state.used[k]
    return max(level, min(least, reached)), full, least


@compiled
def _is_user(state, task, k):
    """Whether a task uses shared resource k."""
    for n in range(state.first_use[task], state.end_use[task]):
        if state.sharing.uses[n] == k:
            return _demand(state, task, k) > 0.0
    return False


@compiled
def _set_rate(state, task, rate, now):
    """Set the rate of a task, which moves its end."""
    if rate != state.rate[task]:
        finish = state.tasks[task].finish
        state.tasks[task].finish = now + (finish - now) * (state.rate[task] / rate)
        state.rate[task] = rate
        state.slowed[task] = True
