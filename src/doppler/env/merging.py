"""Merging ops along heavy edges: a view whose episodes place whole groups."""

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
# Range of the share of memory that these groups fill, every other time if memory can be short.
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
    """The same problem, but ops that heavy edges join go where the first of them goes.

    Its own groups stay together too. Edges join the groups of their ends in the order of falling
    weight, the mean seconds of their transfer. least_weight_s: lighter edges join nothing. cap_s:
    seconds that no group may exceed on the device that runs it fastest.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads in place of his estimate of the makespan.
    """
    return _merged(view, _weights(view), least_weight_s, cap_s)


def merged_at_random(view: ProblemView, rng: np.random.Generator) -> ProblemView:
    """Merged along the edges from a random weight on, maybe none, up to a random load.

    Every other time where memory can be short episodes fill a random share of it: they know less
    of it than estimates do, and to look at it parts what reads the same.
    """
    load = float(np.exp(rng.uniform(*np.log(_LOADS))))
    weights = np.unique(np.append(view.problem.mean_transfer_seconds, np.inf))
    cap_s = load * _fair_share_s(view)
    drawn = merged(view, least_weight_s=float(rng.choice(weights)), cap_s=cap_s)
    if memory_can_lack(view.problem.arrays) and rng.random() < 0.5:
        drawn = with_room(drawn, float(rng.uniform(*_ROOMS)))
    return drawn


def mergings(view: ProblemView) -> list[ProblemView]:
    """The view as it is, by level, and merged from several weights on, under several caps.

    Which of them is best depends on the graph: whoever places decides by what comes of each, and
    goes on from there (`next_to`). Weights and caps are in units of the mean op, or of the mean
    work of a device, so that they mean the same on graphs of any size. Of many ops
    mostly no episode waits (`without_waiting`).
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
    """How many views of a problem are worth their time, `mergings` among them."""
    return min(max(_MOST_PLAYED // max(1, num_ops), _FEWEST), _MOST) if num_ops <= _LARGE else 0


def enough_s(view: ProblemView) -> float:
    """Seconds so close to what any placement takes that further views hardly make it less."""
    arrays = view.arrays
    path_s = float((arrays.least_s + arrays.least_after_s).max())
    return (1.0 + _TO_WIN) * max(arrays.least_work_s / view.problem.num_devices, path_s)


def by_level(view: ProblemView) -> ProblemView:
    """The same groups, but ops of large b_level come first rather than those that can start."""
    counts = 1.0 if view.arrays.level_counts > 1.0 else _BY_LEVEL
    return replace(view, arrays=view.arrays._replace(level_counts=counts))


def without_waiting(view: ProblemView) -> ProblemView:
    """The same, but of many ops the one that can start first comes first, whatever its b_level.

    Where a device waits for a longer path a work-conserving system begins another op, and what was
    waited for is late. Of thousands some other one is nearly always ready: episodes that wait are
    estimated up to 10% shorter than they take. Of fewer ops, and where all transfers together take
    about as long as all ops, it makes no difference in the mean: these views are left as they are.
    """
    arrays, num_ops = view.arrays, view.problem.num_ops
    if num_ops <= MANY_OPS or arrays.transfer.sum() > _CHEAP * num_ops * arrays.mean_op_s:
        return view
    return replace(view, arrays=arrays._replace(start_counts=_WITHOUT_WAITING))


def with_room(view: ProblemView, share: float) -> ProblemView:
    """The same groups, but episodes fill this share of each device's memory, as far as they know.

    They know what is there when an op starts, not what transfers bring before.
    """
    return replace(view, arrays=view.arrays._replace(memory_share=share))


def under_limit(view: ProblemView, limit_s: float) -> ProblemView:
    """The same groups, but greedy episodes sure to take so long behind queues are not played out.

    Their last ops are anywhere: they take as long all the same.
    """
    return replace(view, arrays=view.arrays._replace(limit_s=limit_s))


def next_to(
    view: ProblemView, best: ProblemView, device_V: NDArray[np.int64], rng: np.random.Generator
) -> ProblemView:
    """Other groups than those of the best so far, but not far from them.

    As often as not merged anew, from about the same weight on up to about the same load; else
    pieces of where the ops are now.

    Args:
        view: without groups but the problem's own.
        best: a view of the same problem.
        device_V: what came of it.
        rng: all that is drawn.
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
    """Groups of ops that are on one device, joined by edges in about the order of their weight."""
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
    """Groups that these edges join, the first first, each of no more than ``cap_s`` seconds."""
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
    """Of each edge, the mean seconds of its transfer."""
    return view.problem.mean_transfer_seconds[view.problem.graph.regions.of_edge]


def _fair_share_s(view: ProblemView) -> float:
    """Seconds of each device if all have as much of the mean work."""
    return float(view.problem.mean_op_seconds.sum() / view.problem.num_devices)
