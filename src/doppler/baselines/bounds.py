"""Lower bounds on the makespan of any placement and any order, work-conserving or not."""

from dataclasses import dataclass

import numpy as np

from doppler.graph.levels import longest_paths
from doppler.problem import Problem


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """The largest of several bounds, and which one it is."""

    seconds: float
    name: str


def lower_bound(problem: Problem, *, streams: int = 1) -> LowerBound:
    """Load and path bound, whichever is larger; valid for heterogeneous devices without jitter.

    load: every op at its fastest, spread evenly over all streams of all devices. path: the longest
    path with every op at its fastest and no transfer.
    """
    fastest_V = problem.arrays.op_seconds.min(axis=1)
    edges = problem.graph.edges
    path_V, _ = longest_paths(
        problem.num_ops, edges.src, edges.dst, fastest_V, np.zeros(len(edges))
    )
    bounds = {
        "load": float(fastest_V.sum()) / (problem.num_devices * streams),
        "path": float(path_V.max()),
    }
    name = max(bounds, key=lambda key: bounds[key])
    return LowerBound(seconds=bounds[name], name=name)
