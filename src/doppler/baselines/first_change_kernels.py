"""Compiled: the time until which a move of annealing cannot change the schedule.

Nothing before it has to be simulated again (simulator/resuming_kernels.py).

Dimension: V ops. Indices: v op, i position in a list.
"""

import numpy as np

from doppler.support.compiled import compiled


@compiled
def first_change_s(problem, walk, known):
    """Return the time before which the last step of a walk changes nothing; inf: it never does.

    Args:
        problem: ProblemArrays.
        walk: annealing_walk.Walk; its step is made but not settled.
        known: the schedule before, resuming.Known.
    """
    status, first_s = walk.status, np.inf
    for i in range(status[0].num_moved):
        v = walk.moved[i]
        if walk.device[v] != walk.came_from[i]:
            first_s = min(first_s, _first_read_s(problem, v, known))
    if status[0].rank_low < status[0].rank_high:
        first_s = min(first_s, _first_other_choice_s(problem, walk, known))
    return first_s


@compiled
def _first_read_s(problem, v, known):
    """When the first producer of op v ends and can send to its new device; 0 without producers."""
    if problem.read_ptr[v] == problem.read_ptr[v + 1]:
        return 0.0
    first_s = np.inf
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        first_s = min(first_s, known.tasks[problem.region_src[problem.reads[i]]].finish)
    return first_s


@compiled
def _first_other_choice_s(problem, walk, known):
    """When a resource may first choose another task because ranks have changed.

    Only ops that go along with the step's op, and transfers to them, can cause this. A task that is
    now earlier in the order may be chosen earlier while it waits; one that is later may not be
    chosen when it was.
    """
    tasks, num_ops, num_regions = known.tasks, len(walk.device), len(problem.size)
    low, high = walk.status[0].rank_low, walk.status[0].rank_high
    earlier, first_s = walk.goes_along[walk.ranked[low]], np.inf
    for rank in range(low, high + 1):
        v = walk.ranked[rank]
        if not walk.goes_along[v]:
            continue
        ready_s = 0.0
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            src = problem.region_src[problem.reads[i]]
            arrival_s = tasks[src].finish
            if tasks[src].resource != tasks[v].resource:
                transfer = num_ops + known.copies[i] - num_regions
                first_s = min(first_s, _choice_s(known, transfer, arrival_s, earlier))
                arrival_s = tasks[transfer].finish
            ready_s = max(ready_s, arrival_s)
        first_s = min(first_s, _choice_s(known, v, ready_s, earlier))
    return first_s


@compiled
def _choice_s(known, task, ready_s, earlier):
    """When the choice of one task, which was ready at ``ready_s``, may change.

    A task that started at once was chosen without competitors, unless tasks may take no time.
    """
    start_s = known.tasks[task].start
    if not earlier:
        return start_s
    return ready_s if start_s > ready_s or known.has_instants else np.inf
