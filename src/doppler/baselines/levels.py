"""b_level and t_level of a priced problem, and the default order made of them."""

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import longest_paths
from doppler.problem import Problem, topological_priority


def b_levels(problem: Problem) -> NDArray[np.float64]:
    """Seconds [V] of the longest path from each op to a sink, the op and all transfers included.

    Source: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to
    multiprocessors", ACM Computing Surveys 1999; heterogeneous costs enter by their means.
    """
    edges = problem.graph.edges
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    return longest_paths(
        problem.num_ops, edges.src, edges.dst, problem.mean_op_seconds, transfer_E
    )[0]


def b_level_priority(problem: Problem) -> NDArray[np.int64]:
    """Priorities [V] by falling b_level, ties in topological order: producers come first."""
    priority_V = np.empty(problem.num_ops, dtype=np.int64)
    order_V = np.lexsort((topological_priority(problem), -b_levels(problem)))
    priority_V[order_V] = np.arange(problem.num_ops)
    return priority_V
