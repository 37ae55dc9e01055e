"""Compiled: groups along heavy edges, list-scheduled as a whole, see clustering.py.

Dimensions: B runs, V ops, D devices. Indices: b run, v op, r region, d device, i position in a
list; partial: the schedule so far (list_scheduling.PartialSchedule).
"""

from doppler.baselines.groups_kernels import join_groups, root_of
from doppler.baselines.list_scheduling_kernels import (
    begin,
    best_device,
    choose_home,
    queue_released,
    schedule,
)
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import heap_pop


@compiled
def schedule_clusterings_batch(
    problem, partial, groups, homes, edge_BE, num_edges_B, cap_B, key_BV, seeds_B, decisions
):
    """Merge groups and list-schedule ops, once for each seed.

    Args:
        problem: ProblemArrays.
        partial: the schedule so far, list_scheduling.PartialSchedule.
        groups: Groups.
        homes: devices of groups, clustering._Homes.
        edge_BE: edges of each run, the heaviest first.
        num_edges_B: how many of them may merge their ends.
        cap_B: seconds that a merged group may take.
        key_BV: keys of the ops in each run, small first.
        seeds_B: of the random ties of each run.
        decisions: ListDecisions, filled in.
    """
    for b in range(len(seeds_B)):
        join_groups(problem, groups, edge_BE[b, : num_edges_B[b]], cap_B[b])
        homes.device[:] = -1
        homes.booked[:] = 0.0
        size, num_released = 0, begin(problem, partial, b)
        for step in range(len(partial.ops)):
            size = queue_released(partial, key_BV[b], size, num_released)
            v = heap_pop(partial.candidates, 0, size)
            size -= 1
            root = root_of(groups, v)
            if homes.device[root] < 0:
                load_D, draw = groups.load[root], -1 - step * len(partial.devices)
                home = choose_home(problem, partial, v, load_D, homes.booked, seeds_B[b], draw, -1)
                homes.device[root] = home
                homes.booked[home] += load_D[home]
            d = best_device(problem, partial, v, homes.device[root], False, seeds_B[b], step)
            num_released = schedule(problem, partial, v, d, False, b, step, decisions)
