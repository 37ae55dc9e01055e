"""Compiled: which copies are evicted from a device.

Vocabulary and dimensions as in arrays.py. Indices: v op, d device, r region, t transfer, n datum, c
copy, a position in the walk, e edge, i, j and k positions in lists; plan: PlanState, changed here.

Source: evicting the datum with the farthest next use is Belady, "A study of replacement algorithms
for a virtual-storage computer", IBM Systems Journal 1966.
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING
from doppler.simulator.state_kernels import output_bytes
from doppler.support.compiled import compiled_apart

FARTHEST, LEAST_RECENT, CHEAPEST, BALANCED = 0, 1, 2, 3
VICTIMS = {
    "farthest": FARTHEST,
    "least_recent": LEAST_RECENT,
    "cheapest": CHEAPEST,
    "balanced": BALANCED,
}


@compiled_apart
def host_seconds(plan, d, size):
    """Return the seconds of a copy between a device and the memory of its host.

    Args:
        plan: PlanState.
        d: device.
        size: bytes.
    """
    return plan.machine.to_host_s[d, 0] + size * plan.machine.to_host_s[d, 1]


@compiled_apart
def next_use(plan, n):
    """Return the position of the next task that uses a datum.

    Args:
        plan: PlanState.
        n: datum.

    Returns:
        The position in the walk; the number of positions if nothing uses it any more.
    """
    if plan.data[n].use < plan.data[n].end:
        return plan.uses[plan.data[n].use]
    return len(plan.order)


@compiled_apart
def eviction_seconds(plan, problem, n):
    """Return the seconds to evict a datum and bring it back, by copies or by recomputation.

    Args:
        plan: PlanState.
        problem: ProblemArrays.
        n: datum.
    """
    size, d = plan.data[n].bytes, plan.data[n].on
    back = host_seconds(plan, d, size) if plan.data[n].use < plan.data[n].end else 0.0
    if plan.data[n].evicted != NOTHING:
        return back
    if can_recompute(plan, problem, n):
        return problem.op_seconds[plan.data[n].maker, d]
    return back + host_seconds(plan, d, size)


@compiled_apart
def victim_score(plan, problem, c, lack, now, victim):
    """Score a copy as a candidate for eviction.

    Args:
        plan: PlanState.
        problem: ProblemArrays.
        c: copy.
        lack: bytes that are needed.
        now: estimated start of the task that needs them, seconds.
        victim: rule, one of VICTIMS.

    Returns:
        The score, large is better, and the seconds that the eviction takes.
    """
    n = plan.copies[c].datum
    seconds, position = eviction_seconds(plan, problem, n), next_use(plan, n)
    cost = seconds / min(plan.copies[c].bytes, lack)
    if victim == LEAST_RECENT:
        return -plan.copies[c].until, seconds
    if victim == CHEAPEST:
        return -cost, seconds
    if victim == BALANCED:
        away = 1e3 * seconds
        if position < len(plan.order):
            away = max(plan.start[plan.order[position]] - now, 0.0)
        return -cost / (away + seconds + 1e-12), seconds
    return np.float64(position), seconds


@compiled_apart
def can_recompute(plan, problem, n):
    """Return whether a datum can be recomputed for certain, and faster than it can be copied.

    Whatever its op reads must be on the device when the datum is read next: inputs, which the host
    has, and data that are used then or later and are not dropped themselves. That op must also fit
    beside the op that reads the datum.

    Args:
        plan: PlanState.
        problem: ProblemArrays.
        n: datum.
    """
    v, d = plan.data[n].maker, plan.data[n].on
    if plan.counts[0].recomputes == 0 or v == NOTHING or v >= len(problem.op_seconds):
        return False
    if plan.data[n].feeds > 0 or plan.data[n].stays != 0 or plan.data[n].use >= plan.data[n].end:
        return False
    if problem.op_seconds[v, d] >= 2.0 * host_seconds(plan, d, plan.data[n].bytes):
        return False
    position = plan.uses[plan.data[n].use]
    reader = plan.order[position]
    need = plan.machine.need[v] - output_bytes(problem, v)
    if reader < len(problem.op_seconds):
        need += plan.machine.need[reader]
    else:
        need += plan.data[n].bytes
    if need > plan.machine.limit[d]:
        return False
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        read = plan.free.copies[i]
        if plan.data[read].dropped != 0 or plan.data[read].use >= plan.data[read].end:
            return False
        if plan.uses[plan.data[read].end - 1] < position:
            return False
    return True
