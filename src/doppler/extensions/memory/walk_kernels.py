"""Compiled: the planner, which walks over the tasks of a placement and decides where data are when.

The placement is first simulated without memory limits. The walk visits the tasks in the order in
which they start in this schedule, and retires them in the order in which they end. A task gets
memory for its output, and what it reads is brought back if it was evicted. When memory is short,
tasks are retired early, so that later tasks wait for them, or copies are evicted. Addresses are
assigned last (addresses_kernels.py). If that fails, all data are evicted before one of the tasks,
so that earlier copies are out of the way. The waits of a plan hold for every order of execution;
checks.py proves it.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.

Source: TURNIP (arXiv 2405.16283): tasks in a row, allocation ahead of execution, dependencies on
tasks that freed memory. Deviations: the row is a simulated schedule, addresses are assigned when
all stays are known, inputs are on devices from the start where they fit, an eviction may begin
before the last use of its datum, and data may be recomputed.
"""

import numpy as np

from doppler.extensions.memory.addresses_kernels import assign
from doppler.extensions.memory.arrays import EVICT, LOAD, NOTHING, RECOMPUTE, SLACK
from doppler.extensions.memory.opening_kernels import open_plan, operand, place_copy, sink_datum
from doppler.extensions.memory.space_kernels import add_wait, choose_victims, leave
from doppler.extensions.memory.victims_kernels import can_recompute, host_seconds
from doppler.support.compiled import compiled_apart

_NUM_SMALLER, _SMALLER_BY = 5, 0.93  # retries with less memory before devices are emptied; factor


@compiled_apart
def walk(plan, problem, strict):
    """Plan the placement whose schedule is in `start` and `finish`.

    Args:
        plan: PlanState, changed.
        problem: ProblemArrays.
        strict: whether each device runs its ops in the order of the placement.

    Returns:
        Whether there is a plan.
    """
    for a in range(len(plan.clears)):
        plan.clears[a] = 0
    num = 0
    while True:
        if not _walk_once(plan, problem, strict) or _copies_too_long(plan):
            return False
        if assign(plan):
            return True
        num += 1
        if plan.counts[0].failed != 0 or num > _NUM_SMALLER + plan.counts[0].clears:
            return False
        d = plan.copies[plan.counts[0].stuck].on
        if num <= _NUM_SMALLER and plan.budget[d] > plan.devices[d].first:
            plan.budget[d] = max(plan.devices[d].first, _SMALLER_BY * plan.budget[d])
        else:
            _clear_once_more(plan, problem)


@compiled_apart
def _walk_once(plan, problem, strict):
    open_plan(plan, problem, strict)
    for a in range(plan.counts[0].placed):
        plan.counts[0].position = a
        if plan.clears[a] != 0:
            _clear(plan, problem, a)
        _retire_until(plan, problem, a, plan.start[plan.order[max(0, a - plan.counts[0].ahead)]])
        if not _allocate(plan, problem, a):
            return False
    _retire_until(plan, problem, plan.counts[0].placed, np.inf)
    return plan.counts[0].failed == 0


@compiled_apart
def _copies_too_long(plan):
    """Whether the loads of one device take longer than a plan that is known already."""
    for d in range(len(plan.last)):
        seconds = 0.0
        for c in range(plan.counts[0].copies):
            task = plan.copies[c].creator
            if plan.copies[c].on == d and task != NOTHING and plan.planned[task].kind == LOAD:
                seconds += plan.planned[task].seconds
        if seconds > plan.counts[0].latest:
            return True
    return False


@compiled_apart
def _clear_once_more(plan, problem):
    """Let the next walk empty a device before one more task: the first after the stuck copy."""
    c, num = plan.counts[0].stuck, len(plan.clears)
    for i in range(num):
        a = (plan.copies[c].position + i) % num
        if plan.clears[a] == 0 and _concerns(plan, problem, plan.order[a], plan.copies[c].on):
            plan.clears[a] = 1
            return
    plan.counts[0].failed = 1


@compiled_apart
def _allocate(plan, problem, a):
    """Allocate everything that the task at position a needs; return whether that is possible."""
    task, num_ops = plan.order[a], len(problem.op_seconds)
    if not _bring_all(plan, problem, a):
        return False
    if task >= num_ops:
        first, num = len(problem.size) + task - num_ops, 1
    else:
        first = problem.region_ptr[task]
        num = problem.region_ptr[task + 1] - problem.region_ptr[task]
        if num == 0:
            first, num = sink_datum(plan, problem, task), 1
    return _make(plan, problem, a, first, num)


@compiled_apart
def _bring_all(plan, problem, a):
    """Bring and pin all that the task at position a reads; return whether that is possible."""
    task, i = plan.order[a], 0
    while True:
        n = operand(plan, problem, task, i)
        if n == NOTHING:
            return True
        if plan.data[n].at == NOTHING and not _bring(plan, problem, a, n):
            return False
        plan.copies[plan.data[n].at].pins += 1
        i += 1


@compiled_apart
def _make(plan, problem, a, first, num):
    """Allocate the data ``first`` to ``first + num - 1``, which the task at position a computes."""
    task, total = plan.order[a], 0.0
    for n in range(first, first + num):
        total += plan.data[n].bytes
    if not _make_free(plan, problem, a, total, plan.data[first].on):
        return False
    plan.planned[task].made = plan.counts[0].copies
    plan.planned[task].num_copies = num
    for n in range(first, first + num):
        copy = place_copy(plan, n, task)
        plan.copies[copy].pins = 1
        plan.copies[copy].until = plan.finish[task]
    i, n = 0, operand(plan, problem, task, 0)
    while n != NOTHING:
        _use(plan, plan.data[n].at, task)
        i += 1
        n = operand(plan, problem, task, i)
    return True


@compiled_apart
def _use(plan, c, task):
    """Let a task read a copy: it waits for the copy's writer, and the copy's memory for it."""
    link = plan.counts[0].links
    plan.counts[0].links += 1
    plan.links[link].read = c
    plan.links[link].task = task
    plan.links[link].of_copy = plan.copies[c].uses
    plan.links[link].of_task = plan.planned[task].uses
    plan.copies[c].uses = link
    plan.copies[c].num_uses += 1
    plan.planned[task].uses = link
    if plan.copies[c].creator != NOTHING:
        add_wait(plan, plan.copies[c].creator, task)


@compiled_apart
def _make_free(plan, problem, a, size, d):
    """Free ``size`` bytes on device d for the task at position a; return whether that works."""
    now = plan.start[plan.order[a]]
    while True:
        lack = plan.held[d] + size - plan.budget[d] * (1.0 + SLACK)
        if lack <= 0.0 or size == 0.0:
            return True
        ending = _next_to_end(plan, a)
        num, seconds = choose_victims(plan, problem, d, lack, now, plan.choices.victim)
        latest = now + plan.counts[0].patience * seconds if num > 0 else np.inf
        if ending != NOTHING and plan.finish[ending] <= latest:
            _retire(plan, problem, ending)
            continue
        if num == 0:
            return False
        for i in range(num):
            _evict(plan, problem, a, plan.stack[i], True)


@compiled_apart
def _next_to_end(plan, a):
    """Return the task before position a that ends first and is not retired, or NOTHING."""
    if plan.counts[0].retired >= a:
        return NOTHING
    i = plan.counts[0].ended
    while plan.retired[plan.ends[i]] != 0:
        i += 1
    plan.counts[0].ended = i
    while plan.retired[plan.ends[i]] != 0 or plan.position[plan.ends[i]] >= a:
        i += 1
    return np.int64(plan.ends[i])


@compiled_apart
def _retire(plan, problem, task):
    """Retire a task: release the copies of which it was the last reader."""
    i = 0
    plan.retired[task] = 1
    plan.counts[0].retired += 1
    first = plan.planned[task].made
    for c in range(first, first + plan.planned[task].num_copies):
        plan.copies[c].pins -= 1
    n = operand(plan, problem, task, 0)
    while n != NOTHING:
        c = plan.data[n].at
        plan.copies[c].pins -= 1
        plan.copies[c].until = max(plan.copies[c].until, plan.finish[task])
        plan.data[n].use += 1
        is_read = plan.data[n].use >= plan.data[n].end and plan.data[n].stays == 0
        if is_read and plan.copies[c].pins == 0:  # a pinned copy is still needed to recompute
            leave(plan, c)
        i += 1
        n = operand(plan, problem, task, i)


@compiled_apart
def _evict(plan, problem, a, c, may_drop):
    """Evict copy c: copy it to the host unless it is there already, or drop it to recompute it."""
    n = plan.copies[c].datum
    if plan.data[n].evicted == NOTHING:
        if may_drop and can_recompute(plan, problem, n):
            plan.data[n].dropped = 1
            _count_feeds(plan, problem, n, 1)
        else:
            task = _new_task(plan, EVICT, plan.order[a])
            plan.planned[task].made = c
            plan.planned[task].seconds = host_seconds(plan, plan.data[n].on, plan.data[n].bytes)
            _use(plan, c, task)
            plan.data[n].evicted = task
            plan.counts[0].offloaded += plan.data[n].bytes
    leave(plan, c)


@compiled_apart
def _count_feeds(plan, problem, n, change):
    """Add to the number of dropped data that depend on the operands of datum n."""
    v = plan.data[n].maker
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        plan.data[plan.free.copies[i]].feeds += change


@compiled_apart
def _new_task(plan, kind, of):
    """Create a task of the plan, with the priority of task ``of`` in its queue."""
    task = plan.counts[0].tasks
    plan.counts[0].tasks += 1
    plan.planned[task].kind = kind
    plan.planned[task].made = NOTHING
    plan.planned[task].num_copies = 0
    plan.planned[task].uses = NOTHING
    plan.planned[task].seconds = 0.0
    plan.planned[task].key = plan.planned[of].key
    return task


@compiled_apart
def _bring(plan, problem, a, n):
    """Bring datum n back to its device for the task at position a; return whether that works."""
    if plan.data[n].dropped != 0:
        return _recompute(plan, problem, a, n)
    return _load(plan, problem, a, n)


@compiled_apart
def _load(plan, problem, a, n):
    size, d = plan.data[n].bytes, np.int64(plan.data[n].on)
    if not _make_free(plan, problem, a, size, d):
        return False
    task = _new_task(plan, LOAD, plan.order[a])
    _place(plan, n, task)
    plan.planned[task].seconds = host_seconds(plan, d, size)
    if plan.data[n].evicted >= 0:
        add_wait(plan, plan.data[n].evicted, task)
    plan.counts[0].loaded += size
    return True


@compiled_apart
def _place(plan, n, task):
    """Create the copy of datum n that a task writes."""
    plan.planned[task].made = place_copy(plan, n, task)
    plan.planned[task].num_copies = 1


@compiled_apart
def _recompute(plan, problem, a, n):
    """Recompute datum n after bringing what its op reads; return whether that is possible."""
    v, d, i = plan.data[n].maker, np.int64(plan.data[n].on), 0
    read, fits = operand(plan, problem, v, 0), True
    while read != NOTHING and fits:
        fits = plan.data[read].at != NOTHING or _load(plan, problem, a, read)
        if fits:
            plan.copies[plan.data[read].at].pins += 1
            i += 1
            read = operand(plan, problem, v, i)
    if fits and _make_free(plan, problem, a, plan.data[n].bytes, d):
        task = _new_task(plan, RECOMPUTE, plan.order[a])
        _place(plan, n, task)
        plan.planned[task].seconds = problem.op_seconds[v, d]
        plan.data[n].dropped = 0
        _count_feeds(plan, problem, n, -1)
        plan.counts[0].recomputed += problem.op_seconds[v, d]
    else:
        fits, task = False, NOTHING
    for j in range(i):
        c = plan.data[operand(plan, problem, v, j)].at
        plan.copies[c].pins -= 1
        if fits:
            _use(plan, c, task)
    return fits


@compiled_apart
def _retire_until(plan, problem, a, time):
    """Retire all tasks before position a that end until a time."""
    ending = _next_to_end(plan, a)
    while ending != NOTHING and plan.finish[ending] <= time:
        _retire(plan, problem, ending)
        ending = _next_to_end(plan, a)


@compiled_apart
def _clear(plan, problem, a):
    """Retire all tasks before position a, and empty the devices that its task uses."""
    _retire_until(plan, problem, a, np.inf)
    for d in range(len(plan.first)):
        c = plan.first[d]
        while _concerns(plan, problem, plan.order[a], d) and c != NOTHING:
            after = plan.copies[c].after
            _evict(plan, problem, a, c, False)
            c = after


@compiled_apart
def _concerns(plan, problem, task, d):
    """Whether a task uses memory of device d."""
    num_ops = len(problem.op_seconds)
    if task < num_ops:
        return d == plan.free.tasks[task].resource
    return d == plan.free.tasks[task].source or d == plan.free.tasks[task].destination
