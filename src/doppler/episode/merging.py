"""Merging ops along heavy edges: a view whose episodes place whole groups."""

from dataclasses import replace

import numpy as np

from doppler.baselines.groups import join_groups, label_groups, make_groups
from doppler.episode.view import View, group_rest
from doppler.restrictions import listed

# Loads up to which groups are merged at random.
_LOADS = (0.1, 1.0)
# Heavy edges: transfers over the mean op, and up to which load they merge.
_HEAVY, _HEAVY_LOAD = 4.0, 0.35


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
    return _merged_up_to(view, float(rng.choice(weights)), load)


def heavy_merged(view: View) -> View:
    """Merged where a transfer takes as long as several ops.

    Hardly a placement that keeps these ends apart is a good one: a policy that has not trained on
    the problem is spared to find out (docs/pretrained.md).
    """
    least_weight_s = float(_HEAVY * view.problem.mean_op_seconds.mean())
    return _merged_up_to(view, least_weight_s, _HEAVY_LOAD)


def _merged_up_to(view: View, least_weight_s: float, load: float) -> View:
    """Merged up to a load: a share of what each device has if all have as much of the mean work."""
    mean_s = view.problem.mean_op_seconds.sum() / view.problem.num_devices
    return merged(view, least_weight_s=least_weight_s, cap_s=float(load * mean_s))
