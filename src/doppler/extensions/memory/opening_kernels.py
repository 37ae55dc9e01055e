"""Compiled: the beginning of a plan: data, their uses in a schedule, and inputs that fit.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.
"""

import numpy as np

from doppler.extensions.memory.arrays import FROM_THE_START, MOVE, NOTHING, OP, SLACK
from doppler.extensions.memory.space_kernels import come, open_space
from doppler.simulator.state import NONE
from doppler.support.compiled import compiled_apart
from doppler.support.compiled.heap import heap_pop, heap_push


@compiled_apart
def open_plan(plan, problem, strict):
    """Reset the plan; list the tasks by `start` and by `finish`, and the uses of each datum.

    Args:
        plan: PlanState, changed.
        problem: ProblemArrays.
        strict: whether each device runs its ops in the order of the placement.
    """
    num_base = len(problem.op_seconds) + plan.free.num_transfers[0]
    counts = plan.counts
    counts[0].tasks = num_base
    counts[0].placed = num_base
    counts[0].copies = 0
    counts[0].links = 0
    counts[0].waits = 0
    counts[0].steps = 0
    counts[0].position = 0
    counts[0].retired = 0
    counts[0].ended = 0
    counts[0].failed = 0
    counts[0].offloaded = 0.0
    counts[0].loaded = 0.0
    counts[0].recomputed = 0.0
    _open_tasks(plan, problem, num_base)
    _rank_ops(plan, problem, strict)
    _list_by(plan, problem, plan.start, plan.order, num_base)
    _list_by(plan, problem, plan.finish, plan.ends, num_base)
    for a in range(num_base):
        plan.position[plan.order[a]] = a
    open_space(plan)
    _open_data(plan, problem)
    _list_uses(plan, problem, num_base)
    _place_inputs(plan, problem)


@compiled_apart
def operand(plan, problem, task, i):
    """Return the i-th datum that a task of the placement reads, or NOTHING after the last one.

    Args:
        plan: PlanState.
        problem: ProblemArrays.
        task: op or transfer.
        i: from 0.
    """
    num_ops = len(problem.op_seconds)
    if task >= num_ops:
        return np.int64(plan.free.tasks[task].number) if i == 0 else NOTHING
    num_reads = problem.read_ptr[task + 1] - problem.read_ptr[task]
    if i < num_reads:
        return np.int64(plan.free.copies[problem.read_ptr[task] + i])
    k = plan.machine.op_input_ptr[task] + i - num_reads
    if k < plan.machine.op_input_ptr[task + 1]:
        return np.int64(plan.input_datum[plan.machine.op_inputs[k]])
    return NOTHING


@compiled_apart
def sink_datum(plan, problem, v):
    """Return the datum that holds the output of op v if no op reads it.

    Args:
        plan: PlanState.
        problem: ProblemArrays.
        v: op.
    """
    return len(problem.size) + len(plan.free.tasks) - len(problem.op_seconds) + v


@compiled_apart
def _open_tasks(plan, problem, num_base):
    num_ops = len(problem.op_seconds)
    for task in range(num_base):
        planned = plan.planned[task]
        planned.kind = OP if task < num_ops else MOVE
        planned.made = NOTHING
        planned.num_copies = 0
        planned.uses = NOTHING
        plan.retired[task] = 0
        planned.key = plan.free.tasks[task].key


@compiled_apart
def _rank_ops(plan, problem, strict):
    """Number the ops so that numbers rise along edges and, under strict order, along devices."""
    num_ops, head, tail = len(problem.op_seconds), 0, 0
    if not strict:
        for v in range(num_ops):
            plan.rank[v] = plan.machine.depth[v]
        return
    for v in range(num_ops):
        plan.pending[v] = problem.read_ptr[v + 1] - problem.read_ptr[v]
    for v in range(num_ops):
        if plan.free.tasks[v].next != NONE:
            plan.pending[plan.free.tasks[v].next] += 1
    for v in range(num_ops):
        if plan.pending[v] == 0:
            plan.stack[tail] = v
            tail += 1
    while head < tail:
        v = plan.stack[head]
        plan.rank[v] = head
        head += 1
        for e in range(
            problem.consumer_ptr[problem.region_ptr[v]],
            problem.consumer_ptr[problem.region_ptr[v + 1]],
        ):
            tail = _count_down(plan, problem.consumers[e], tail)
        if plan.free.tasks[v].next != NONE:
            tail = _count_down(plan, np.int64(plan.free.tasks[v].next), tail)


@compiled_apart
def _count_down(plan, v, tail):
    plan.pending[v] -= 1
    if plan.pending[v] == 0:
        plan.stack[tail] = v
        return tail + 1
    return tail


@compiled_apart
def _list_by(plan, problem, time, tasks, num_base):
    """Sort the tasks by a time; among equal times, tasks that others depend on come first."""
    num_ops = len(problem.op_seconds)
    for task in range(num_base):
        if task < num_ops:
            rank = 2 * plan.rank[task]
        else:
            r = np.int64(plan.free.tasks[task].number)
            rank = 2 * plan.rank[problem.region_src[r]] + 1
        heap_push(plan.heap, 0, task, time[task], rank * num_base + task)
    for i in range(num_base):
        tasks[i] = heap_pop(plan.heap, 0, num_base - i) % num_base


@compiled_apart
def _open_data(plan, problem):
    """Reset all data; none is on a device yet."""
    num_regions, num_ops = len(problem.size), len(problem.op_seconds)
    for n in range(len(plan.data)):
        plan.data[n].end = 0
    for v in range(num_ops):
        d = np.int64(plan.free.tasks[v].resource)
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            _open_datum(plan, r, problem.region_bytes[r], d, v)
        if problem.region_ptr[v] == problem.region_ptr[v + 1]:
            _open_datum(plan, sink_datum(plan, problem, v), problem.sink_bytes[v], d, v)
            plan.data[sink_datum(plan, problem, v)].stays = 1
    for t in range(plan.free.num_transfers[0]):
        r = np.int64(plan.free.tasks[num_ops + t].number)
        d = plan.free.tasks[num_ops + t].destination
        _open_datum(plan, num_regions + t, problem.region_bytes[r], np.int64(d), num_ops + t)
        if plan.data[r].sent == NOTHING:
            plan.data[r].sent = t
    first = sink_datum(plan, problem, num_ops)
    n = first
    for d in range(len(plan.first)):
        plan.devices[d].last = 0
    for i in range(len(problem.input_bytes)):
        for j in range(problem.input_ptr[i], problem.input_ptr[i + 1]):
            d = np.int64(plan.free.tasks[problem.input_consumers[j]].resource)
            last = np.int64(plan.devices[d].last)
            if last == 0 or plan.data[last - 1].maker != -2 - i:
                _open_datum(plan, n, problem.input_bytes[i], d, -2 - i)
                plan.data[n].evicted = FROM_THE_START
                n += 1
                plan.devices[d].last = n
            plan.input_datum[j] = plan.devices[d].last - 1
    for k in range(first, n):
        plan.data[k].maker = NOTHING
    for d in range(len(plan.first)):
        plan.devices[d].last = 0
    plan.counts[0].inputs = n - first


@compiled_apart
def _open_datum(plan, n, size, d, maker):
    datum = plan.data[n]
    datum.bytes = size
    datum.on = d
    datum.at = NOTHING
    datum.evicted = NOTHING
    datum.maker = maker
    datum.use = 0
    datum.end = 0
    datum.stays = 0
    datum.dropped = 0
    datum.feeds = 0
    datum.sent = NOTHING


@compiled_apart
def _list_uses(plan, problem, num_base):
    """List the positions of the tasks that use each datum: count them, then fill them in."""
    for a in range(num_base):
        i, n = 0, operand(plan, problem, plan.order[a], 0)
        while n != NOTHING:
            plan.data[n].end += 1
            i += 1
            n = operand(plan, problem, plan.order[a], i)
    total = 0
    for n in range(_num_data(plan, problem)):
        num = plan.data[n].end
        plan.data[n].use = total
        plan.data[n].end = total
        total += num
    for a in range(num_base):
        i, n = 0, operand(plan, problem, plan.order[a], 0)
        while n != NOTHING:
            plan.uses[plan.data[n].end] = a
            plan.data[n].end += 1
            i += 1
            n = operand(plan, problem, plan.order[a], i)


@compiled_apart
def _num_data(plan, problem):
    return sink_datum(plan, problem, len(problem.op_seconds)) + plan.counts[0].inputs


@compiled_apart
def _place_inputs(plan, problem):
    """Place inputs on devices from the start while they fit, those that are used first first."""
    first, num = sink_datum(plan, problem, len(problem.op_seconds)), plan.counts[0].inputs
    for k in range(num):
        heap_push(plan.heap, 0, k, np.float64(plan.uses[plan.data[first + k].use]), first + k)
    for k in range(num):
        n = heap_pop(plan.heap, 0, num - k)
        d = plan.data[n].on
        if plan.held[d] + plan.data[n].bytes <= plan.budget[d] * (1.0 + SLACK):
            place_copy(plan, n, NOTHING)


@compiled_apart
def place_copy(plan, n, creator):
    """Create a copy of datum n on its device; the caller has made room for it.

    Args:
        plan: PlanState, changed.
        n: datum.
        creator: task that writes the copy, or NOTHING.

    Returns:
        The copy.
    """
    c = plan.counts[0].copies
    plan.counts[0].copies += 1
    copy = plan.copies[c]
    copy.datum = n
    copy.on = plan.data[n].on
    copy.bytes = plan.data[n].bytes
    copy.address = 0.0
    copy.until = 0.0
    copy.creator = creator
    copy.uses = NOTHING
    copy.num_uses = 0
    copy.pins = 0
    copy.freed = NOTHING
    copy.gone = 0
    copy.chosen = 0
    copy.tries = 0
    plan.data[n].at = c
    come(plan, c)
    return c
