"""Merged views: groups of ops along heavy edges, which episodes place as a whole."""

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.groups_kernels import join_groups, label_groups, make_groups
from doppler.env.problem_view import ProblemView, group_rest
from doppler.problem.restrictions import listed
from doppler.simulator.state import memory_can_lack

# Range of the largest load of randomly merged groups.
_LOADS = (0.1, 1.0)
# Range of the share of memory that their episodes fill, in every other view if memory can be short.
_ROOMS = (0.5, 1.0)
# Least weights of heavy edges, as transfer over mean op; largest sizes of a group, in mean ops; and
# largest share of a device's work in a group (of several devices if transfers cost most).
_WEIGHTS, _CAPS, _HEAVY_LOAD = (1.0, 2.0, 4.0, 8.0), (4.0, 16.0), 0.35
_SHARES = (1.0, 2.0, 4.0)
# Graphs with more ops are mostly placed without waiting, and merged in fewer ways.
MANY_OPS = 1024
# Weights and shares for such graphs; for still larger ones, weight and cap.
_OF_LARGE = ((1.0, _HEAVY_LOAD), (1.0, 1.0), (4.0, 2.0), (8.0, 4.0))
_LARGE, _OF_LARGEST = 1 << 14, (8.0, 16.0)
# Ops of all views of one problem together, and least and largest number of its views.
_MOST_PLAYED, _FEWEST, _MOST = 6_144, 6, 40
# If a placement is this close to a lower bound, further views are not worth their time.
_TO_WIN = 0.06
# Weight of b_levels in an episode that follows them.
_BY_LEVEL = 4.0
# Weight of starts in an episode that never waits; transfers are cheap up to this share of the
# seconds of all ops.
_WITHOUT_WAITING, _CHEAP = 1_000.0, 0.75
# Views near the best one: standard deviation of the logarithms of least weight and cap, and of the
# weights of edges; how often the latter are varied; how often b_levels are weighted otherwise.
_STEP, _JITTER, _JITTERS, _OTHER_COUNTS = 0.5, 0.3, 0.7, 0.125
# Pieces of a placement: the largest share of edges that is cut, and the range of loads of a piece.
_CUT, _LOADS_OF_PIECES = 0.3, (0.05, 1.5)


def merged(view: ProblemView, *, least_weight_s: float, cap_s: float) -> ProblemView:
    """Join ops along heavy edges into groups; a group goes where its first op goes.

    The problem's own groups also stay together. Edges join the groups of their ends in the order of
    falling weight, which is the mean seconds of their transfer.

    Args:
        view: the problem.
        least_weight_s: lighter edges join nothing.
        cap_s: seconds that no group may exceed on the device that runs it fastest.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads instead of his estimate of the makespan.
    """
    return _merged(view, _weights(view), least_weight_s, cap_s)


def merged_at_random(view: ProblemView, rng: np.random.Generator) -> ProblemView:
    """Merge along edges above a random weight (possibly none), up to a random load.

    If memory can be short, every other view limits episodes to a random share of it. Episodes know
    less about memory than estimates, and looking at it separates ops that read the same data.

    Args:
        view: the problem.
        rng: for all random choices.
    """
    load = float(np.exp(rng.uniform(*np.log(_LOADS))))
    weights = np.unique(np.append(view.problem.mean_transfer_seconds, np.inf))
    cap_s = load * _fair_share_s(view)
    drawn = merged(view, least_weight_s=float(rng.choice(weights)), cap_s=cap_s)
    if memory_can_lack(view.problem.arrays) and rng.random() < 0.5:
        drawn = with_room(drawn, float(rng.uniform(*_ROOMS)))
    return drawn


def mergings(view: ProblemView) -> list[ProblemView]:
    """Return the view as it is, by level, and merged with several weights and caps.

    Which of them is best depends on the graph. A search plays all, keeps the best, and continues
    from there (`next_to`). Weights and caps are in units of the mean op, or of the mean work of a
    device, so that they mean the same on graphs of any size. On large graphs most episodes never
    wait (`without_waiting`).

    Args:
        view: the problem.
    """
    view = without_waiting(view)
    mean_op_s, share_s = view.arrays.mean_op_s, _fair_share_s(view)
    num_ops, views = view.problem.num_ops, [view]
    if num_ops <= _LARGE:
        views.append(by_level(view))
    loads = _OF_LARGE if num_ops <= _LARGE else ()
    caps = (_OF_LARGEST,) if num_ops > _LARGE else ()
    if num_ops <= MANY_OPS:
        caps, loads = tuple(product(_WEIGHTS, _CAPS)), tuple(product(_WEIGHTS, _SHARES))
    limits = [(weight, min(cap * mean_op_s, _HEAVY_LOAD * share_s)) for weight, cap in caps]
    limits += [(weight, load * share_s) for weight, load in loads]
    known = {view.arrays.group.tobytes()}
    for weight, cap_s in limits:
        one = merged(view, least_weight_s=weight * mean_op_s, cap_s=cap_s)
        label = one.arrays.group.tobytes()
        if label not in known:
            known.add(label)
            views.append(one)
    return views


def num_to_play(num_ops: int) -> int:
    """Return how many views of a problem, including `mergings`, are worth their time.

    Args:
        num_ops: of the problem.
    """
    return min(max(_MOST_PLAYED // max(1, num_ops), _FEWEST), _MOST) if num_ops <= _LARGE else 0


def enough_s(view: ProblemView) -> float:
    """Return seconds so close to a lower bound that further views can hardly improve on them.

    Args:
        view: the problem.
    """
    arrays = view.arrays
    path_s = float((arrays.least_s + arrays.least_after_s).max())
    return (1.0 + _TO_WIN) * max(arrays.least_work_s / view.problem.num_devices, path_s)


def by_level(view: ProblemView) -> ProblemView:
    """Return a view with the same groups in which ops of large b_level come first.

    Of such a view, return the one without this preference.

    Args:
        view: the problem.
    """
    counts = 1.0 if view.arrays.level_counts > 1.0 else _BY_LEVEL
    return replace(view, arrays=view.arrays._replace(level_counts=counts))


def without_waiting(view: ProblemView) -> ProblemView:
    """Return a view in which, on large graphs, the op that can start first comes first.

    In an episode a device may wait for an op on a longer path. A work-conserving system starts
    another op instead, and the awaited op is late. With thousands of ops another one is nearly
    always ready, so the estimates of episodes that wait are up to 10% too short. With fewer ops, or
    if all transfers together take about as long as all ops, it makes no difference on average, and
    the view is returned unchanged.

    Args:
        view: the problem.
    """
    arrays, num_ops = view.arrays, view.problem.num_ops
    if num_ops <= MANY_OPS or arrays.transfer.sum() > _CHEAP * num_ops * arrays.mean_op_s:
        return view
    return replace(view, arrays=arrays._replace(start_counts=_WITHOUT_WAITING))


def with_room(view: ProblemView, share: float) -> ProblemView:
    """Return a view with the same groups whose episodes fill only a share of each device's memory.

    Episodes know what is in memory when an op starts, but not what transfers bring before.

    Args:
        view: the problem.
        share: of each device's memory.
    """
    return replace(view, arrays=view.arrays._replace(memory_share=share))


def under_limit(view: ProblemView, limit_s: float) -> ProblemView:
    """Return a view whose greedy episodes stop once they are sure to take as long as a limit.

    The remaining ops are placed anywhere, which does not shorten the makespan.

    Args:
        view: the problem.
        limit_s: seconds, with queues of transfers.
    """
    return replace(view, arrays=view.arrays._replace(limit_s=limit_s))


def next_to(
    view: ProblemView, best: ProblemView, device_V: NDArray[np.int64], rng: np.random.Generator
) -> ProblemView:
    """Return a view with groups close to those of the best view so far.

    With equal probability it is merged anew with about the same weight and load, or its groups are
    pieces of the present placement.

    Args:
        view: the problem without merged groups.
        best: the best view so far.
        device_V: devices of ops in its episode.
        rng: for all random choices.
    """
    if rng.random() < _OTHER_COUNTS:
        best = by_level(best)
    arrays = view.arrays._replace(level_counts=best.arrays.level_counts)
    view = replace(view, arrays=arrays, least_weight_s=best.least_weight_s, cap_s=best.cap_s)
    if rng.random() < 0.5:
        return _pieces(view, device_V, rng)
    weight_s, cap_s, weight_E = best.least_weight_s, best.cap_s, _weights(view)
    if not np.isfinite(weight_s):
        weight_s = float(rng.choice(weight_E)) if len(weight_E) else 0.0
        cap_s = _fair_share_s(view)
    weight_s, cap_s = np.exp(rng.normal(0.0, _STEP, 2)) * (weight_s, cap_s)
    if rng.random() < _JITTERS:
        weight_E = weight_E * np.exp(rng.normal(0.0, _JITTER, len(weight_E)))
    return _merged(view, weight_E, float(weight_s), float(cap_s))


def _pieces(
    view: ProblemView, device_V: NDArray[np.int64], rng: np.random.Generator
) -> ProblemView:
    """Groups of ops on one device, joined by edges in roughly the order of their weight."""
    edges = view.problem.graph.edges
    kept_E = rng.random(len(edges)) >= rng.uniform(0.0, _CUT)
    inside = np.flatnonzero((device_V[edges.src] == device_V[edges.dst]) & kept_E)
    key = _weights(view)[inside] * np.exp(rng.normal(0.0, 1.0, len(inside)))
    load = float(np.exp(rng.uniform(*np.log(_LOADS_OF_PIECES))))
    return _joined(view, inside[np.argsort(-key)], load * _fair_share_s(view))


def _merged(
    view: ProblemView, weight_E: NDArray[np.float64], least_weight_s: float, cap_s: float
) -> ProblemView:
    heaviest_first_E = np.argsort(-weight_E, kind="stable")
    heavy = heaviest_first_E[: np.count_nonzero(weight_E >= least_weight_s)]
    return replace(_joined(view, heavy, cap_s), least_weight_s=least_weight_s, cap_s=cap_s)


def _joined(view: ProblemView, edges: NDArray[np.int64], cap_s: float) -> ProblemView:
    """Groups that these edges join, in order, each with at most ``cap_s`` seconds."""
    problem = view.problem
    groups, group_V = make_groups(problem), np.empty(problem.num_ops, np.int64)
    join_groups(problem.arrays, groups, edges, cap_s)
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


def _weights(view: ProblemView) -> NDArray[np.float64]:
    """The mean seconds of each edge's transfer."""
    return view.problem.mean_transfer_seconds[view.problem.graph.regions.of_edge]


def _fair_share_s(view: ProblemView) -> float:
    """The seconds of each device if all have an equal share of the mean work."""
    return float(view.problem.mean_op_seconds.sum() / view.problem.num_devices)
