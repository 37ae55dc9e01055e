"""Orders and longest paths of a directed acyclic graph given as edge arrays.

Shape suffixes: V ops, E edges.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels_kernels import fill_longest_paths, fill_topological_order

IntArray = NDArray[np.int64]


def successors(num_ops: int, src_E: IntArray, dst_E: IntArray) -> tuple[IntArray, IntArray]:
    """Return the adjacency as (ptr [V + 1], edge ids [E] grouped by src, in the order of dst).

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge.
    """
    edge_E = np.lexsort((dst_E, src_E))
    return np.searchsorted(src_E[edge_E], np.arange(num_ops + 1)), edge_E


def topological_order(num_ops: int, src_E: IntArray, dst_E: IntArray) -> IntArray:
    """Return ops [V], producers first, in breadth-first order with ties by number.

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge; edges have no cycle.
    """
    ptr, edge_E = successors(num_ops, src_E, dst_E)
    order_V = np.empty(num_ops, dtype=np.int64)
    visited = fill_topological_order(
        ptr, dst_E[edge_E], np.bincount(dst_E, minlength=num_ops), order_V
    )
    assert visited == num_ops, "the graph has a cycle"
    return order_V


def ranked_order(num_ops: int, src_E: IntArray, dst_E: IntArray, rank_V: IntArray) -> IntArray:
    """Return ops [V] with producers first; of the ops possible next, the smallest rank is next.

    If the ranks themselves put producers first, that is the order of the ranks.

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge.
        rank_V: rank of each op.
    """
    ptr, edge_E = successors(num_ops, src_E, dst_E)
    first, consumers = ptr.tolist(), dst_E[edge_E].tolist()
    indegree = np.bincount(dst_E, minlength=num_ops).tolist()
    rank = rank_V.tolist()
    candidates = [(rank[v], v) for v in range(num_ops) if indegree[v] == 0]
    heapq.heapify(candidates)
    order = []
    while candidates:
        _, v = heapq.heappop(candidates)
        order.append(v)
        for c in consumers[first[v] : first[v + 1]]:
            indegree[c] -= 1
            if indegree[c] == 0:
                heapq.heappush(candidates, (rank[c], c))
    assert len(order) == num_ops, "the graph has a cycle"
    return np.array(order, dtype=np.int64)


def find_cycle(num_ops: int, src_E: IntArray, dst_E: IntArray) -> list[int]:
    """Return the ops of one cycle in the direction of the edges, or an empty list.

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge.
    """
    ptr, edge_E = successors(num_ops, src_E, dst_E)
    indegree_V = np.bincount(dst_E, minlength=num_ops)
    order_V = np.empty(num_ops, dtype=np.int64)
    if fill_topological_order(ptr, dst_E[edge_E], indegree_V, order_V) == num_ops:
        return []
    # Every remaining op has a remaining producer, so walking back must end in a cycle.
    left_V = indegree_V > 0
    inner_E = left_V[src_E] & left_V[dst_E]
    producer = dict(zip(dst_E[inner_E].tolist(), src_E[inner_E].tolist(), strict=True))
    op = next(iter(producer))
    position: dict[int, int] = {}
    while op not in position:
        position[op] = len(position)
        op = producer[op]
    return list(position)[position[op] :][::-1]


def longest_paths(
    num_ops: int,
    src_E: IntArray,
    dst_E: IntArray,
    weight_V: NDArray[np.float64],
    weight_E: NDArray[np.float64],
) -> tuple[NDArray[np.float64], IntArray]:
    """Return the length [V] of the longest path from each op to a sink, and the op after it [V].

    A path's length is the sum of the weights of its ops, both ends included, and of its edges. With
    weights in seconds this is the b_level (Kwok and Ahmad 1999); on reversed edges, minus the op's
    own weight, it is the t_level.

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge.
        weight_V: of ops.
        weight_E: of edges.

    Returns:
        Lengths, and the next op of each path; -1 at a sink.
    """
    ptr, edge_E = successors(num_ops, src_E, dst_E)
    length_V = np.zeros(num_ops)
    next_V = np.full(num_ops, -1, np.int64)
    order_V = topological_order(num_ops, src_E, dst_E)
    fill_longest_paths(
        ptr, dst_E[edge_E], order_V, np.array(weight_V), weight_E[edge_E], next_V, length_V
    )
    return length_V, next_V


def depth(num_ops: int, src_E: IntArray, dst_E: IntArray) -> IntArray:
    """Return the number of edges on the longest path from a source to each op [V].

    Args:
        num_ops: V.
        src_E: producer of each edge.
        dst_E: consumer of each edge.
    """
    length_V, _ = longest_paths(num_ops, dst_E, src_E, np.zeros(num_ops), np.ones(len(src_E)))
    return length_V.astype(np.int64)
