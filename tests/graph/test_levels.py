"""Orders and longest paths, held against networkx on random graphs."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.graph.levels import depth, find_cycle, longest_paths, successors, topological_order

many = settings(max_examples=150, deadline=None)


@st.composite
def edge_lists(draw, *, acyclic: bool):
    """Number of ops and distinct edges; ids of acyclic graphs are shuffled."""
    num = draw(st.integers(1, 12))
    name = draw(st.permutations(range(num)))
    pairs = [(u, v) for u in range(num) for v in range(num) if (u < v if acyclic else u != v)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    edges = [(name[u], name[v]) for u, v in chosen]
    return num, np.array([u for u, _ in edges], int), np.array([v for _, v in edges], int)


def as_networkx(num: int, src: np.ndarray, dst: np.ndarray) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(num))
    graph.add_edges_from(zip(src.tolist(), dst.tolist(), strict=True))
    return graph


@many
@given(edge_lists(acyclic=True))
def test_topological_order_puts_every_producer_before_its_consumers(edges):
    num, src, dst = edges
    order = topological_order(*edges)
    assert sorted(order.tolist()) == list(range(num))
    position = np.empty(num, int)
    position[order] = np.arange(num)
    assert (position[src] < position[dst]).all()


@many
@given(edge_lists(acyclic=True), st.randoms(use_true_random=False))
def test_topological_order_does_not_depend_on_the_order_of_edges(edges, random):
    num, src, dst = edges
    shuffled = list(range(len(src)))
    random.shuffle(shuffled)
    np.testing.assert_array_equal(
        topological_order(num, src, dst), topological_order(num, src[shuffled], dst[shuffled])
    )


def test_topological_order_is_breadth_first_with_ties_by_id():
    # 0 and 4 are sources; 3 and 1 become ready through 0, then 2 through 4 and 1.
    src, dst = np.array([0, 0, 4, 1]), np.array([3, 1, 2, 2])
    assert topological_order(5, src, dst).tolist() == [0, 4, 1, 3, 2]


@many
@given(edge_lists(acyclic=True))
def test_depth_is_the_longest_distance_from_a_source(edges):
    num, src, dst = edges
    generation = {
        v: level
        for level, ops in enumerate(nx.topological_generations(as_networkx(*edges)))
        for v in ops
    }
    assert depth(num, src, dst).tolist() == [generation[v] for v in range(num)]


@many
@given(edge_lists(acyclic=True), st.integers(0, 2**32 - 1))
def test_longest_paths_equal_the_longest_of_all_paths_and_their_next_ops_lie_on_one(edges, seed):
    num, src, dst = edges
    rng = np.random.default_rng(seed)
    work, transfer = rng.integers(0, 5, num).astype(float), rng.integers(0, 5, len(src)) * 1.0
    length, after = longest_paths(num, src, dst, work, transfer)

    # networkx knows edge weights only: an op's weight goes on its outgoing edges, sinks get an end.
    graph = nx.DiGraph()
    graph.add_nodes_from(range(num))
    cost = {}
    for u, v, seconds in zip(src.tolist(), dst.tolist(), transfer, strict=True):
        cost[u, v] = seconds
        graph.add_edge(u, v, weight=work[u] + seconds)
    for v in range(num):
        if graph.out_degree(v) == 0:
            graph.add_edge(v, "end", weight=work[v])
    for v in range(num):
        from_v = graph.subgraph({v, "end"} | nx.descendants(graph, v))
        assert length[v] == nx.dag_longest_path_length(from_v)
        if after[v] < 0:
            assert v not in src
        else:
            assert length[v] == work[v] + cost[v, after[v]] + length[after[v]]


def test_longest_paths_of_parallel_edges_take_the_longer_one():
    src, dst = np.array([0, 0]), np.array([1, 1])
    length, after = longest_paths(2, src, dst, np.array([1.0, 1.0]), np.array([2.0, 5.0]))
    assert length.tolist() == [7, 1]
    assert after.tolist() == [1, -1]


@many
@given(edge_lists(acyclic=False))
def test_find_cycle_returns_a_cycle_exactly_where_networkx_finds_one(edges):
    cycle = find_cycle(*edges)
    graph = as_networkx(*edges)
    if nx.is_directed_acyclic_graph(graph):
        assert cycle == []
    else:
        assert len(set(cycle)) == len(cycle) >= 2
        for u, v in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert graph.has_edge(u, v)


def test_topological_order_refuses_a_cycle():
    with pytest.raises(AssertionError, match="cycle"):
        topological_order(2, np.array([0, 1]), np.array([1, 0]))


def test_successors_groups_edges_by_source_in_the_order_of_destinations():
    ptr, edge = successors(3, np.array([2, 0, 0, 2]), np.array([1, 2, 1, 0]))
    assert ptr.tolist() == [0, 2, 2, 4]
    assert edge.tolist() == [2, 1, 3, 0]
