"""What is known of a problem before and while it is placed, as numbers of a learner.

Shape suffixes: F features.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import longest_paths
from doppler.problem import Problem

FEATURES = (
    *("log_ops", "log_devices", "log_edges", "log_transfer_ratio", "log_width", "unevenness"),
    "groups",
)
PROGRESS = ("gap", "root_gap", "last_gain", "gain_before")
_LEAST = 1e-6


def problem_features(problem: Problem) -> NDArray[np.float64]:
    """Numbers [F] that say which kind of problem it is; none depends on the unit of its seconds."""
    graph, op_s_V = problem.graph, problem.mean_op_seconds
    op_s = max(float(op_s_V.mean()), _LEAST * problem.scale_s)
    transfer_s_R = problem.mean_transfer_seconds
    transfer_s = float(transfer_s_R.mean()) if len(transfer_s_R) else 0.0
    path_V, _ = longest_paths(
        graph.num_ops, graph.edges.src, graph.edges.dst, op_s_V, np.zeros(graph.num_edges)
    )
    seconds_VD = np.where(np.isfinite(problem.arrays.op_seconds), problem.arrays.op_seconds, np.nan)
    spread_V = np.nanstd(seconds_VD, axis=1) / np.maximum(op_s_V, _LEAST * op_s)
    return np.array(
        [
            math.log(problem.num_ops),
            math.log(problem.num_devices),
            math.log1p(graph.num_edges / graph.num_ops),
            math.log(max(transfer_s / op_s, 1e-3)),
            math.log(max(float(op_s_V.sum()) / max(float(path_V.max()), _LEAST * op_s), 1.0)),
            float(spread_V.mean()),
            float(problem.has_groups),
        ]
    )


def progress_features(found_s: Sequence[float], bound_s: float, at: int) -> NDArray[np.float64]:
    """What the levels up to ``at`` say: how far the bound is, and what the last ones were worth."""
    gap = math.log(max(found_s[at] / bound_s, 1.0)) if bound_s > 0 else 1.0
    gained = [
        math.log(max(found_s[i] / found_s[i + 1], 1.0)) if i + 1 <= at else 0.0
        for i in range(max(0, at - 2), at)
    ]
    before, last = [0.0, 0.0, *gained][-2:]
    return np.array([gap, math.sqrt(gap), last, before])
