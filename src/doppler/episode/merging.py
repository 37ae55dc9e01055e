"""Merging ops along heavy edges: a view whose episodes place whole groups."""

from dataclasses import replace
from itertools import product

import numpy as np

from doppler.baselines.groups import join_groups, label_groups, make_groups
from doppler.episode.view import View, group_rest
from doppler.restrictions import listed

# Loads up to which groups are merged at random.
_LOADS = (0.1, 1.0)
# Heavy edges, as transfers over the mean op; mean ops that a group may have, and the share of what
# a device has that it may have at most; where moving costs most, shares of several devices.
_WEIGHTS, _CAPS, _HEAVY_LOAD = (1.0, 2.0, 4.0, 8.0), (4.0, 16.0), 0.35
_SHARES = (1.0, 2.0, 4.0)
# Of graphs of more ops: one of each.
_MOST_OPS, _OF_LARGE = 1024, (8.0, 16.0)
# Merged at random beside: at most, and at least up to so many ops; else as many as have so many
# ops together.
_AT_RANDOM, _FEWEST, _MOST_OF_FEWEST, _MOST_MERGED = 32, 4, 1 << 14, 4096


def merged(view: View, *, least_weight_s: float, cap_s: float) -> View:
    """The same problem, but ops that heavy edges join go where the first of them goes.

    Its own groups stay together too. Edges join the groups of their ends in the order of falling
    weight, the mean seconds of their transfer. least_weight_s: lighter edges join nothing. cap_s:
    seconds that no group may exceed on the device that runs it fastest.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads in place of his estimate of the makespan.
    """
    problem = view.problem
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    heaviest_first_E = np.argsort(-weight_E, kind="stable")
    heavy = heaviest_first_E[: np.count_nonzero(weight_E >= least_weight_s)]
    groups, group_V = make_groups(problem), np.empty(problem.num_ops, np.int64)
    join_groups(problem.arrays, groups, heavy, cap_s)
    label_groups(groups, group_V)
    _, member_ptr, members = listed(group_V)
    arrays = view.arrays._replace(
        group=group_V,
        group_rest=group_rest(problem, group_V),
        member_ptr=member_ptr,
        members=members,
        able=np.isfinite(groups.load)[group_V],
    )
    return replace(view, arrays=arrays)


def merged_at_random(view: View, rng: np.random.Generator) -> View:
    """Merged along the edges from a random weight on, maybe none, up to a random load."""
    load = float(np.exp(rng.uniform(*np.log(_LOADS))))
    weights = np.unique(np.append(view.problem.mean_transfer_seconds, np.inf))
    cap_s = load * _fair_share_s(view)
    return merged(view, least_weight_s=float(rng.choice(weights)), cap_s=cap_s)


def mergings(view: View) -> list[View]:
    """The view as it is, and merged from several weights on, under several caps on a group.

    Which of them is best depends on the graph: whoever places decides by what comes of each.
    Weights and caps are in units of the mean op, so that they mean the same on graphs of any size.
    Beside them some are merged at random, the same at every call. Of large graphs there is one of
    the heaviest edges: of nine families of 3,000 and 10,000 ops all eight together were 0.2%
    better, four at random 0.9% and 1.5%.
    """
    mean_op_s, share_s = view.arrays.mean_op_s, _fair_share_s(view)
    views, known = [view], {view.arrays.group.tobytes()}
    choices = product(_WEIGHTS, _CAPS) if view.problem.num_ops <= _MOST_OPS else [_OF_LARGE]
    limits = [(weight, min(cap * mean_op_s, _HEAVY_LOAD * share_s)) for weight, cap in choices]
    if view.problem.num_ops <= _MOST_OPS:
        limits += [(weight, share * share_s) for weight, share in product(_WEIGHTS, _SHARES)]
    made = [merged(view, least_weight_s=one * mean_op_s, cap_s=cap_s) for one, cap_s in limits]
    rng = np.random.default_rng(0)
    made += [merged_at_random(view, rng) for _ in range(_num_at_random(view.problem.num_ops))]
    for one in made:
        label = one.arrays.group.tobytes()
        if label not in known:
            known.add(label)
            views.append(one)
    return views


def _num_at_random(num_ops: int) -> int:
    fewest = _FEWEST if num_ops <= _MOST_OF_FEWEST else 0
    return min(max(_MOST_MERGED // max(1, num_ops), fewest), _AT_RANDOM)


def _fair_share_s(view: View) -> float:
    """Seconds of each device if all have as much of the mean work."""
    return float(view.problem.mean_op_seconds.sum() / view.problem.num_devices)
