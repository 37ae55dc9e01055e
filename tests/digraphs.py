"""Graphs for the algorithms of networkx."""

import networkx as nx

from doppler.graph import DataflowGraph


def as_digraph(graph: DataflowGraph) -> nx.MultiDiGraph:
    """Ops by their ids, an edge per region that flows between two of them."""
    digraph = nx.MultiDiGraph()
    digraph.add_nodes_from(range(graph.num_ops))
    edges = graph.edges
    digraph.add_edges_from(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    return digraph
