"""Compiled: orders of the ops that need little memory.

The ops are taken one after another, as if all devices had one queue; each device forgets the least
recently used data when it is full. The planner follows the schedule with these priorities.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.

Source: taking the ready op that frees most memory is the rule of list scheduling for registers
(Goodman and Hsu, "Code scheduling and register allocation in large basic blocks", ICS 1988).
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING
from doppler.extensions.memory.opening_kernels import operand, sink_datum
from doppler.simulator.state_kernels import output_bytes
from doppler.support.compiled import compiled_apart

# Rules: the schedule without limits; the op that frees most memory; the op that misses least data
# on its device; the first op, in the schedule without limits, that fits.
OWN, FREES, FINDS, FITS = 0, 1, 2, 3
_WINDOW = 32  # largest number of ready ops to choose from: those that start first without limits


@compiled_apart
def order_ops(plan, problem, rule):
    """Order the ops by a rule; the place of each is left in `sequence`.

    Args:
        plan: PlanState, changed; data are open and `start` is known.
        problem: ProblemArrays.
        rule: one of FREES, FINDS and FITS.
    """
    num_ops, num_ready, step = len(problem.op_seconds), 0, 0
    for d in range(len(plan.first)):
        plan.first[d] = NOTHING
        plan.last[d] = NOTHING
        plan.held[d] = 0.0
    for n in range(len(plan.data)):
        plan.data[n].at = NOTHING
    for v in range(num_ops):
        plan.pending[v] = problem.read_ptr[v + 1] - problem.read_ptr[v]
        plan.sequence[v] = 0
        if plan.pending[v] == 0:
            num_ready = _insert(plan, v, num_ready)
    while num_ready > 0:
        i = _best(plan, problem, rule, min(num_ready, _WINDOW))
        v = plan.ready[i]
        for j in range(i, num_ready - 1):
            plan.ready[j] = plan.ready[j + 1]
        num_ready -= 1
        step += 1
        _take(plan, problem, v, step)
        plan.sequence[v] = step
        for e in range(
            problem.consumer_ptr[problem.region_ptr[v]],
            problem.consumer_ptr[problem.region_ptr[v + 1]],
        ):
            other = problem.consumers[e]
            plan.pending[other] -= 1
            if plan.pending[other] == 0:
                plan.sequence[other] = step  # until it is taken: the step at which it became ready
                num_ready = _insert(plan, other, num_ready)


@compiled_apart
def _insert(plan, v, num):
    """Insert op v into the ready ops, sorted by the schedule without limits."""
    i = num
    while i > 0 and plan.position[plan.ready[i - 1]] > plan.position[v]:
        plan.ready[i] = plan.ready[i - 1]
        i -= 1
    plan.ready[i] = v
    return num + 1


@compiled_apart
def _best(plan, problem, rule, num):
    """Return the index of the op to take among the first ``num`` ready ops."""
    best, best_first, best_second, best_third = 0, -np.inf, -np.inf, -np.inf
    for i in range(num):
        v, missing, freed = plan.ready[i], 0.0, -output_bytes(problem, plan.ready[i])
        j, n = 0, operand(plan, problem, v, 0)
        need = -freed
        while n != NOTHING:
            if plan.data[n].at == NOTHING:
                missing += plan.data[n].bytes
            if plan.data[n].use + 1 == plan.data[n].end:
                freed += plan.data[n].bytes
            j += 1
            n = operand(plan, problem, v, j)
        first, second, third = freed, np.float64(plan.sequence[v]), 0.0
        if rule == FINDS:
            first, second, third = -missing, freed, second
        elif rule == FITS:
            d = np.int64(plan.free.tasks[v].resource)
            if plan.held[d] + missing + need <= plan.budget[d]:
                return i
        if first > best_first or (
            first == best_first
            and (second > best_second or (second == best_second and third > best_third))
        ):
            best, best_first, best_second, best_third = i, first, second, third
    return best


@compiled_apart
def _take(plan, problem, v, step):
    """Take op v: its output is now on the devices that read it."""
    j, n = 0, operand(plan, problem, v, 0)
    while n != NOTHING:
        _touch(plan, n, step)
        plan.data[n].use += 1
        j += 1
        n = operand(plan, problem, v, j)
    _make_room(plan, np.int64(plan.free.tasks[v].resource), output_bytes(problem, v), step)
    j, n = 0, operand(plan, problem, v, 0)
    while n != NOTHING:
        if plan.data[n].use >= plan.data[n].end and plan.data[n].at != NOTHING:
            _drop(plan, n)
        j += 1
        n = operand(plan, problem, v, j)
    if problem.region_ptr[v] == problem.region_ptr[v + 1]:
        _touch(plan, sink_datum(plan, problem, v), step)
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        t = plan.data[r].sent
        while t != NOTHING and t < plan.free.num_transfers[0]:
            if plan.free.tasks[len(problem.op_seconds) + t].number != r:
                break
            _touch(plan, len(problem.size) + t, step)
            plan.data[r].use += 1
            t += 1
        if plan.data[r].use < plan.data[r].end:
            _touch(plan, r, step)


@compiled_apart
def _touch(plan, n, step):
    """Put datum n on its device as the most recently used one."""
    d = plan.data[n].on
    if plan.data[n].at != NOTHING:
        _drop(plan, n)
    _make_room(plan, d, plan.data[n].bytes, step)
    plan.held[d] += plan.data[n].bytes
    plan.data[n].at = step
    plan.data[n].before = plan.last[d]
    plan.data[n].after = NOTHING
    if plan.last[d] == NOTHING:
        plan.first[d] = n
    else:
        plan.data[plan.last[d]].after = n
    plan.last[d] = n


@compiled_apart
def _make_room(plan, d, size, step):
    """Forget the least recently used data until there is room, but none of this step."""
    n = plan.first[d]
    while n != NOTHING and plan.held[d] + size > plan.budget[d] and plan.data[n].at != step:
        _drop(plan, n)
        n = plan.first[d]


@compiled_apart
def _drop(plan, n):
    """Remove datum n from its device."""
    d, before, after = plan.data[n].on, plan.data[n].before, plan.data[n].after
    plan.data[n].at = NOTHING
    plan.held[d] -= plan.data[n].bytes
    if before == NOTHING:
        plan.first[d] = after
    else:
        plan.data[before].after = after
    if after == NOTHING:
        plan.last[d] = before
    else:
        plan.data[after].before = before
