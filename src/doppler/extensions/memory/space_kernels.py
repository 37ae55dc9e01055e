"""Compiled: which copies are on a device, which leave it, and which tasks wait for which.

During the walk a copy takes memory but has no address; addresses are assigned at the end
(addresses_kernels.py).

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.
"""

import numpy as np

from doppler.extensions.memory.arrays import FREE, NOTHING
from doppler.extensions.memory.victims_kernels import victim_score
from doppler.support.compiled import compiled_apart


@compiled_apart
def open_space(plan):
    """Empty all devices.

    Args:
        plan: PlanState, changed.
    """
    for d in range(len(plan.first)):
        plan.first[d] = NOTHING
        plan.held[d] = 0.0


@compiled_apart
def come(plan, c):
    """Let a copy occupy memory of its device from now on.

    Args:
        plan: PlanState, changed.
        c: copy.
    """
    copy = plan.copies[c]
    d, first = copy.on, plan.first[copy.on]
    copy.born = plan.counts[0].steps
    copy.position = plan.counts[0].position
    copy.died = NOTHING
    plan.counts[0].steps += 1
    if copy.bytes == 0.0:
        return
    plan.held[d] += copy.bytes
    copy.before = NOTHING
    copy.after = first
    if first != NOTHING:
        plan.copies[first].before = c
    plan.first[d] = c


@compiled_apart
def leave(plan, c):
    """Release the memory of a copy.

    Args:
        plan: PlanState, changed.
        c: copy.
    """
    copy = plan.copies[c]
    copy.gone = 1
    plan.data[copy.datum].at = NOTHING
    copy.died = plan.counts[0].steps
    plan.counts[0].steps += 1
    if copy.creator == NOTHING and copy.num_uses == 0:
        copy.died = copy.born  # it was never there
    if copy.bytes == 0.0:
        return
    plan.held[copy.on] -= copy.bytes
    if copy.before == NOTHING:
        plan.first[copy.on] = copy.after
    else:
        plan.copies[copy.before].after = copy.after
    if copy.after != NOTHING:
        plan.copies[copy.after].before = copy.before


@compiled_apart
def choose_victims(plan, problem, d, lack, now, victim):
    """Choose the copies to evict from a device, best first, and none that is not needed.

    Args:
        plan: PlanState; the copies are left in `stack`.
        problem: ProblemArrays.
        d: device.
        lack: bytes to free.
        now: estimated start of the task that needs them, seconds.
        victim: rule, one of VICTIMS.

    Returns:
        The number of copies and the seconds that their eviction takes; 0 and inf if all of them
        together are not enough.
    """
    num, total = 0, 0.0
    while total < lack:
        best, best_score, best_cost, c = NOTHING, -np.inf, np.inf, plan.first[d]
        while c != NOTHING:
            if plan.copies[c].pins == 0 and plan.copies[c].chosen == 0:
                score, cost = victim_score(plan, problem, c, lack - total, now, victim)
                if score > best_score or (score == best_score and cost < best_cost):
                    best, best_score, best_cost = c, score, cost
            c = plan.copies[c].after
        if best == NOTHING:
            break
        plan.copies[best].chosen = 1
        plan.stack[num] = best
        total += plan.copies[best].bytes
        num += 1
    for i in range(num):
        plan.copies[plan.stack[i]].chosen = 0
    if total < lack:
        return 0, np.inf
    kept, seconds = 0, 0.0
    for j in range(num):  # spare copies that are not needed, the last chosen first
        i = num - 1 - j
        size = plan.copies[plan.stack[i]].bytes
        if total - size >= lack:
            total -= size
            plan.stack[i] = NOTHING
    for i in range(num):
        if plan.stack[i] != NOTHING:
            plan.stack[kept] = plan.stack[i]
            kept += 1
            _, cost = victim_score(plan, problem, plan.stack[i], lack, now, victim)
            seconds += cost
    return kept, seconds


@compiled_apart
def freed_by(plan, c):
    """Return the FREE task of a copy, which waits for all tasks that use it; create it if needed.

    Args:
        plan: PlanState, changed.
        c: copy.
    """
    if plan.copies[c].freed == NOTHING:
        task = plan.counts[0].tasks
        plan.counts[0].tasks += 1
        plan.planned[task].kind = FREE
        plan.planned[task].made = c
        plan.planned[task].num_copies = 0
        plan.planned[task].uses = NOTHING
        plan.planned[task].seconds = 0.0
        plan.copies[c].freed = task
        link = plan.copies[c].uses
        if link == NOTHING:
            add_wait(plan, plan.copies[c].creator, task)
        while link != NOTHING:
            add_wait(plan, plan.links[link].task, task)
            link = plan.links[link].of_copy
    return plan.copies[c].freed


@compiled_apart
def add_wait(plan, task, other):
    """Make a task start only after another has finished.

    Args:
        plan: PlanState, changed.
        task: that finishes.
        other: that waits for it.
    """
    n = plan.counts[0].waits
    if n < len(plan.waits):
        plan.waits[n, 0] = task
        plan.waits[n, 1] = other
        plan.counts[0].waits = n + 1
    else:
        plan.counts[0].failed = 1
