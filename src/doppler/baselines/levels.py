"""Longest paths of a problem, and the default order of ops by them.

Costs that differ by device or link enter as means.

Source: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to
multiprocessors", ACM Computing Surveys 1999.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import longest_paths
from doppler.problem import Problem, topological_priority


def b_levels(problem: Problem) -> NDArray[np.float64]:
    """Return the seconds [V] of the longest path from each op to a sink, with transfers."""
    edges, work_V = problem.graph.edges, problem.mean_op_seconds
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    return longest_paths(problem.num_ops, edges.src, edges.dst, work_V, transfer_E)[0]


def t_levels(problem: Problem) -> NDArray[np.float64]:
    """Return the seconds [V] of the longest path from a source to each op, excluding the op."""
    edges, work_V = problem.graph.edges, problem.mean_op_seconds
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    return longest_paths(problem.num_ops, edges.dst, edges.src, work_V, transfer_E)[0] - work_V


def static_levels(problem: Problem) -> NDArray[np.float64]:
    """Return the seconds [V] of the longest path from each op to a sink, without transfers."""
    edges, work_V = problem.graph.edges, problem.mean_op_seconds
    no_transfer_E = np.zeros(len(edges))
    return longest_paths(problem.num_ops, edges.src, edges.dst, work_V, no_transfer_E)[0]


def b_level_priority(problem: Problem) -> NDArray[np.int64]:
    """Return priorities [V] by falling b_level, ties in topological order: producers come first."""
    priority_V = np.empty(problem.num_ops, dtype=np.int64)
    order_V = np.lexsort((topological_priority(problem), -b_levels(problem)))
    priority_V[order_V] = np.arange(problem.num_ops)
    return priority_V
