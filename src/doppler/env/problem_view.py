"""What a policy sees of a problem before its first decision: static features and affinities.

Everything is scaled by the problem itself, so that a policy carries over to other graphs, clusters
and numbers of devices.

Shape suffixes: V ops, E edges, R regions, D devices, L levels, F features.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs
from threadpoolctl import ThreadpoolController

from doppler.baselines.list_scheduling import tie_seconds
from doppler.graph.levels import depth, longest_paths
from doppler.problem import Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OP_FEATURES = (
    "compute",
    "b_level",
    "t_level",
    "criticality",
    "incoming",
    "outgoing",
    "largest_incoming",
    "largest_outgoing",
    "fan_in",
    "fan_out",
    "depth",
    "relative_compute",
    "is_source",
    "is_sink",
)
# Retention factors of the diffusion kernels, and whether edges are weighted by transfer time.
DIFFUSIONS = ((0.6, True), (0.95, True), (0.95, False))
# Graphs with more ops have queues of ready ops, fewer candidates, and no diffusion kernels. With
# 600 to 1,000 ops kernels take 80% of the time of a placement and improve it by 0.1%; with 300 to
# 450 ops they take half of it and improve nothing.
LARGE = 256
# Smaller entries are dropped. Ops that meet only many levels further down have entries of 1e-6,
# which matter as long as nothing nearer is placed.
_NEGLIGIBLE = 1e-8


class ViewArrays(NamedTuple):
    """The static part of an episode as plain arrays for compiled code."""

    depth: IntArray  # [V]
    b_level: FloatArray  # [V] seconds of the longest path to a sink, transfers included
    rank: IntArray  # [V] among all ops by falling b_level, ties by number
    by_rank: IntArray  # [V] the op of each rank
    level_work: FloatArray  # [L] seconds of the ops of a level, the mean over devices
    transfer: FloatArray  # [R] mean seconds of a transfer
    incoming: FloatArray  # [V] seconds of all transfers that an op may need
    siblings: FloatArray  # [V] weight of the producers that share a consumer with the op
    kernel_ptr: IntArray  # [V + 1] row p: the ops that feel where op p is placed
    kernel_col: IntArray
    kernel: NDArray[np.float32]  # [entries, kernels]; the columns of each kernel sum to 1
    group: IntArray  # [V] equal for ops that go to one device, an op of theirs; see merging.py
    group_rest: FloatArray  # [V] mean seconds of the other ops of its group
    member_ptr: IntArray  # [V + 1] row g: the ops of group g; no rows where there are no groups
    members: IntArray
    able: NDArray[np.bool_]  # [V, D] devices that may run an op, and all of its group
    device_class: IntArray  # [D] equal for devices that nothing tells apart
    scale_s: float
    transfer_scale_s: float
    mean_op_s: float
    tie_s: float  # times that differ by less are tied
    level_counts: (
        float  # times what a policy's list scheduler makes of b_levels, see merging.by_level
    )
    start_counts: float  # the same of starts, see merging.without_waiting
    least_s: FloatArray  # [V] of each op, on the device that runs it fastest
    least_work_s: float  # of all together
    least_after_s: FloatArray  # [V] of the longest path behind each op, nothing moved
    memory_share: (
        float  # share of each device's memory that episodes fill; inf: they do not look at it
    )
    limit_s: float  # greedy episodes that are sure to take as long are not looked at to their end


@dataclass(frozen=True, eq=False, kw_only=True)
class ProblemView:
    """A problem as a policy sees it: static features, scaled by the problem.

    Attributes:
        problem: that is placed.
        op_features: [V, F] columns OP_FEATURES.
        edge_features: [E, 1] transfer seconds over the largest.
        to_sink: [V] the next op on each op's longest path to a sink; -1 at the end.
        to_source: [V] the previous op on its longest path from a source; -1 at the start.
        arrays: what compiled episodes read.
        least_weight_s: weight of the edges that groups were merged across (`merging.merged`); inf
            without groups.
        cap_s: largest load of a merged group; inf without groups.
    """

    problem: Problem
    op_features: NDArray[np.float32]
    edge_features: NDArray[np.float32]
    to_sink: IntArray
    to_source: IntArray
    arrays: ViewArrays
    least_weight_s: float = np.inf
    cap_s: float = np.inf

    @property
    def is_merged(self) -> bool:
        """Whether ops may be in groups."""
        return len(self.arrays.members) > 0


class _Levels(NamedTuple):
    """Longest paths, including transfers, and levels, [V] each."""

    b_level: FloatArray  # seconds to a sink, the op's own included
    t_level: FloatArray  # seconds from a source, the op's own not included
    depth: IntArray
    to_sink: IntArray
    to_source: IntArray


def make_view(problem: Problem) -> ProblemView:
    """Compute the static features of a problem.

    Args:
        problem: to place.

    Source: DOPPLER (Yao et al., ICLR 2026), static features; the scaling, further features and
    affinity kernels are ours.
    """
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    levels = _levels(problem, transfer_E)
    edge_features_E1 = (transfer_E / _transfer_scale_s(problem))[:, None]
    return ProblemView(
        problem=problem,
        op_features=_op_features(problem, levels, transfer_E),
        edge_features=edge_features_E1.astype(np.float32),
        to_sink=levels.to_sink,
        to_source=levels.to_source,
        arrays=_arrays(problem, levels, transfer_E),
    )


def _transfer_scale_s(problem: Problem) -> float:
    return float(problem.mean_transfer_seconds.max(initial=0.0)) or 1.0


def _levels(problem: Problem, transfer_E: FloatArray) -> _Levels:
    num_ops, edges, work_V = problem.num_ops, problem.graph.edges, problem.mean_op_seconds
    b_level_V, to_sink = longest_paths(num_ops, edges.src, edges.dst, work_V, transfer_E)
    up_V, to_source = longest_paths(num_ops, edges.dst, edges.src, work_V, transfer_E)
    depth_V = depth(num_ops, edges.src, edges.dst)
    return _Levels(b_level_V, up_V - work_V, depth_V, to_sink, to_source)


def _op_features(problem: Problem, levels: _Levels, transfer_E: FloatArray) -> NDArray[np.float32]:
    """The features [V, F] of ops, with columns OP_FEATURES."""
    edges, num_ops, work_V = problem.graph.edges, problem.num_ops, problem.mean_op_seconds
    largest_in_V, largest_out_V = np.zeros(num_ops), np.zeros(num_ops)
    np.maximum.at(largest_in_V, edges.dst, transfer_E)
    np.maximum.at(largest_out_V, edges.src, transfer_E)
    fan_in_V = np.bincount(edges.dst, minlength=num_ops)
    fan_out_V = np.bincount(edges.src, minlength=num_ops)
    incoming_V = np.bincount(edges.dst, transfer_E, num_ops)
    regions_src = problem.graph.regions.src
    outgoing_V = np.bincount(regions_src, problem.mean_transfer_seconds, num_ops)
    transfer_scale = _transfer_scale_s(problem)
    path = float(levels.b_level.max()) or 1.0
    columns = {
        "compute": work_V / problem.scale_s,
        "b_level": levels.b_level / path,
        "t_level": levels.t_level / path,
        "criticality": (levels.b_level + levels.t_level) / path,
        "incoming": incoming_V / transfer_scale,
        "outgoing": outgoing_V / transfer_scale,
        "largest_incoming": largest_in_V / transfer_scale,
        "largest_outgoing": largest_out_V / transfer_scale,
        "fan_in": np.log1p(fan_in_V),
        "fan_out": np.log1p(fan_out_V),
        "depth": levels.depth / max(1, levels.depth.max()),
        "relative_compute": work_V / (work_V.max() or 1.0),
        "is_source": fan_in_V == 0,
        "is_sink": fan_out_V == 0,
    }
    features_VF = np.stack([columns[name] for name in OP_FEATURES], axis=1)
    return np.clip(features_VF, 0.0, 4.0).astype(np.float32)


def _arrays(problem: Problem, levels: _Levels, transfer_E: FloatArray) -> ViewArrays:
    edges, num_ops, least_V = problem.graph.edges, problem.num_ops, problem.arrays.op_seconds.min(1)
    no_transfer_E = np.zeros(len(edges))
    least_path_V, _ = longest_paths(num_ops, edges.src, edges.dst, least_V, no_transfer_E)
    incoming_V = np.bincount(edges.dst, transfer_E, num_ops).astype(np.float64)
    _, pair_E = np.unique(edges.src * num_ops + edges.dst, return_inverse=True)
    own_E = np.bincount(pair_E, transfer_E)[pair_E]  # all that dst reads of src
    sibling_E = transfer_E * np.maximum(incoming_V[edges.dst] - own_E, 0.0)
    kernel_ptr, kernel_col, kernel = _diffusion_kernels(problem, transfer_E)
    by_rank = np.argsort(-levels.b_level, kind="stable")
    rank_V = np.empty(num_ops, np.int64)
    rank_V[by_rank] = np.arange(num_ops)
    return ViewArrays(
        depth=levels.depth,
        b_level=levels.b_level,
        rank=rank_V,
        by_rank=by_rank,
        level_work=np.bincount(levels.depth, problem.mean_op_seconds).astype(np.float64),
        transfer=problem.mean_transfer_seconds,
        incoming=incoming_V,
        siblings=np.bincount(edges.src, sibling_E, num_ops).astype(np.float64),
        kernel_ptr=kernel_ptr,
        kernel_col=kernel_col,
        kernel=kernel,
        group=problem.arrays.group,
        group_rest=group_rest(problem, problem.arrays.group),
        member_ptr=problem.arrays.member_ptr,
        members=problem.arrays.members,
        able=np.isfinite(problem.arrays.op_seconds),
        device_class=device_classes(problem),
        scale_s=problem.scale_s,
        transfer_scale_s=_transfer_scale_s(problem),
        mean_op_s=float(problem.mean_op_seconds.mean()) or 1.0,
        tie_s=tie_seconds(levels.b_level),
        level_counts=1.0,
        start_counts=1.0,
        least_s=least_V,
        least_work_s=float(least_V.sum()),
        least_after_s=least_path_V - least_V,
        memory_share=np.inf,
        limit_s=np.inf,
    )


def group_rest(problem: Problem, group_V: IntArray) -> FloatArray:
    """Return the mean seconds [V] of the other ops in each op's group; exactly 0 if it is alone.

    Args:
        problem: to place.
        group_V: group of each op.
    """
    work_V, num_ops = problem.mean_op_seconds, problem.num_ops
    size_V = np.bincount(group_V, minlength=num_ops)
    together_V = np.bincount(group_V, work_V, num_ops)[group_V]
    return np.where(size_V[group_V] > 1, together_V - work_V, 0.0)


def _step(weights: sp.csr_array, retention: float, num_ops: int) -> sp.csr_array:
    """The symmetrically normalised weights times the retention: a S."""
    degree = weights @ np.ones(num_ops)
    inverse = sp.diags_array(1.0 / np.sqrt(np.where(degree > 0, degree, 1.0)))
    return (retention * (inverse @ weights @ inverse)).tocsr()


@cache
def _linear_algebra() -> ThreadpoolController:
    """The loaded linear algebra libraries; kept because finding them takes longer than use."""
    return ThreadpoolController()


def _whole_series(step_VV: FloatArray) -> FloatArray:
    """sum_k (a S)^k, with columns that sum to 1 and without negligible entries."""
    # I - a S is symmetric and positive definite: half the work of a general inverse.
    factorise, invert = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)
    # With another busy process, its threads would wait for each other ten times as long.
    with _linear_algebra().limit(limits=1, user_api="blas"):
        factor, failed = factorise(np.identity(len(step_VV)) - step_VV, lower=1)
        assert not failed, "retentions are below 1"
        lower, _ = invert(factor, lower=1)  # what is above the diagonal is 0
    total = lower + lower.T
    np.fill_diagonal(total, lower.diagonal())
    total /= total.sum(axis=0)
    total[total < _NEGLIGIBLE] = 0.0
    return total


def _diffusion_kernels(
    problem: Problem, transfer_E: FloatArray
) -> tuple[IntArray, IntArray, NDArray[np.float32]]:
    """The kernels of DIFFUSIONS on one sparsity pattern, as sparse rows; none on large graphs."""
    edges, num_ops = problem.graph.edges, problem.num_ops
    if num_ops > LARGE:
        nothing = np.zeros((0, len(DIFFUSIONS)), np.float32)
        return np.zeros(num_ops + 1, np.int64), np.zeros(0, np.int64), nothing
    series = []
    for retention, weighted in DIFFUSIONS:
        weight_E = transfer_E if weighted else np.ones(len(edges))
        one_way = sp.csr_array((weight_E, (edges.src, edges.dst)), shape=(num_ops, num_ops))
        series.append(_whole_series(_step(one_way + one_way.T, retention, num_ops).toarray()))
    kept_VV = np.logical_or.reduce([one_VV != 0.0 for one_VV in series])
    row_ptr = np.append(0, kept_VV.sum(axis=1).cumsum())
    entries = np.flatnonzero(kept_VV)
    kernel = np.empty((len(entries), len(series)), np.float32)
    for k, one_VV in enumerate(series):
        kernel[:, k] = one_VV.ravel()[entries]
    return row_ptr, entries % num_ops, kernel


def device_classes(problem: Problem) -> IntArray:
    """Return the class [D] of each device; swapping two devices of a class changes nothing.

    Args:
        problem: gives the devices.
    """
    device_class = np.arange(problem.num_devices)
    for d in range(problem.num_devices):
        for earlier in range(d):
            is_first = device_class[earlier] == earlier
            if is_first and problem.same_when_swapped(d, earlier):
                device_class[d] = earlier
                break
    return device_class
