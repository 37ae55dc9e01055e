"""Compiled: a topological order and the longest paths of a graph given as edge arrays.

Dimensions: V ops, E edges. Indices: v op, i edge, k position in an order.
"""

from doppler.support.compiled import compiled


@compiled
def fill_topological_order(ptr, dst_E, indegree_V, order_V):
    """Order ops so that producers come first, breadth first, ties by number.

    Args:
        ptr: [V + 1] edges of op v are ``ptr[v]:ptr[v + 1]``.
        dst_E: consumer of each edge.
        indegree_V: edges into each op; changed.
        order_V: filled in.

    Returns:
        The number of ops that are ordered; without cycles, all of them.

    Source: Kahn, "Topological sorting of large networks", CACM 1962.
    """
    tail = 0
    for v in range(len(ptr) - 1):
        if indegree_V[v] == 0:
            order_V[tail] = v
            tail += 1
    head = 0
    while head < tail:
        for i in range(ptr[order_V[head]], ptr[order_V[head] + 1]):
            indegree_V[dst_E[i]] -= 1
            if indegree_V[dst_E[i]] == 0:
                order_V[tail] = dst_E[i]
                tail += 1
        head += 1
    return tail


@compiled
def fill_longest_paths(ptr, dst_E, order_V, weight_V, weight_E, next_V, length_V):
    """Compute the length of the longest path from each op to a sink, and the op after it.

    Args:
        ptr: [V + 1] edges of op v are ``ptr[v]:ptr[v + 1]``.
        dst_E: consumer of each edge.
        order_V: ops, producers first.
        weight_V: of ops.
        weight_E: of edges.
        next_V: -1 everywhere; filled in, -1 stays at sinks.
        length_V: filled in.
    """
    for k in range(len(order_V) - 1, -1, -1):
        v = order_V[k]
        best = 0.0
        for i in range(ptr[v], ptr[v + 1]):
            through = weight_E[i] + length_V[dst_E[i]]
            if next_V[v] < 0 or through > best:
                best = through
                next_V[v] = dst_E[i]
        length_V[v] = weight_V[v] + best
