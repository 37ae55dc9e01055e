"""Converts a DataflowGraph to a networkx graph and back."""

import networkx as nx
import numpy as np

from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, Ops
from doppler.graph.given_costs import (
    edge_entry,
    given_costs,
    op_entry,
    read_edge_entry,
    read_op_entry,
)
from doppler.support.errors import InputError

_OP_COLUMNS = ("flops", "read_bytes", "output_bytes", "node", "block")


def to_networkx(graph: DataflowGraph) -> nx.MultiDiGraph:
    """Return a MultiDiGraph: nodes are op ids, edge keys are region labels, columns are attributes.

    Inputs, tensors and ``counts_memory`` are attributes of the graph. Given costs are
    ``given_seconds`` attributes as in JSON.

    Args:
        graph: to convert.
    """
    result = nx.MultiDiGraph(name=graph.name, inputs=graph.inputs, tensors=graph.tensors)
    ops, edges, given = graph.ops, graph.edges, graph.given_costs
    if given and (
        given.counts_memory or given.op_seconds is None or given.transfer_seconds is None
    ):
        result.graph["counts_memory"] = given.counts_memory
    optional = {"kernel": ops.kernels, "reads": ops.reads, "box": ops.boxes}
    optional["alternatives"] = ops.alternatives
    for v in range(graph.num_ops):
        columns = {column: getattr(ops, column)[v].item() for column in _OP_COLUMNS}
        for column in ("group", "pinned"):
            if getattr(ops, column)[v] >= 0:
                columns[column] = getattr(ops, column)[v].item()
        execution = {name: column[v] for name, column in optional.items() if column}
        seconds = op_entry(given, v) if given else {}
        result.add_node(
            v,
            name=ops.names[v],
            kind=ops.kinds[v],
            dtype=ops.dtypes[v],
            **columns,
            **execution,
            **seconds,
        )
    for e in range(graph.num_edges):
        seconds = edge_entry(given, e) if given else {}
        result.add_edge(
            int(edges.src[e]),
            int(edges.dst[e]),
            key=int(edges.region[e]),
            bytes=float(edges.bytes[e]),
            **seconds,
        )
    return result


def from_networkx(graph: nx.DiGraph, *, name: str | None = None) -> DataflowGraph:
    """Return a DataflowGraph of any directed networkx graph; nodes are numbered in their order.

    Attributes are those that `to_networkx` writes; missing ones are 0 or have a default. The keys
    of parallel edges are region labels; keys that are not integers are numbered. Given costs are
    read if every node and edge has ``given_seconds``. For a graph with ``counts_memory``, which
    `to_networkx` writes, those of all nodes or of all edges are enough. In a graph without parallel
    edges, what an op sends in one size is one region.

    Args:
        graph: to convert.
        name: of the result; that of ``graph`` unless given.

    Raises:
        InputError: the graph is undirected; or as DataflowGraph does.
    """
    if not graph.is_directed():
        raise InputError("networkx graph: must be directed")
    index = {node: v for v, node in enumerate(graph.nodes)}
    nodes = [attributes for _, attributes in graph.nodes(data=True)]
    if isinstance(graph, nx.MultiDiGraph):
        edges = [(u, v, key, data) for u, v, key, data in graph.edges(keys=True, data=True)]
    else:
        # What goes to several readers is one region if it has one size.
        sizes: dict[object, dict[float, int]] = {}
        edges = []
        for u, v, data in graph.edges(data=True):
            known = sizes.setdefault(u, {})
            edges.append((u, v, known.setdefault(data.get("bytes", 0.0), len(known)), data))
    region = {key: number for number, key in enumerate(dict.fromkeys(key for *_, key, _ in edges))}
    if all(isinstance(key, int) for key in region):
        region = {key: key for key in region}
    return DataflowGraph(
        name=name or graph.graph.get("name") or "networkx",
        ops=Ops.make(
            names=[str(data.get("name", node)) for node, data in graph.nodes(data=True)],
            kinds=[data.get("kind", "op") for data in nodes],
            dtypes=[data.get("dtype", "f32") for data in nodes],
            flops=[data.get("flops", 0.0) for data in nodes],
            read_bytes=[data.get("read_bytes", 0.0) for data in nodes],
            output_bytes=[data.get("output_bytes", 0.0) for data in nodes],
            node=[data.get("node", -1) for data in nodes],
            block=[data.get("block", v) for v, data in enumerate(nodes)],
            group=[data.get("group", -1) for data in nodes],
            pinned=[data.get("pinned", -1) for data in nodes],
            kernels=_column(nodes, "kernel", None),
            reads=_column(nodes, "reads", ()),
            boxes=_column(nodes, "box", ()),
            alternatives=_column(nodes, "alternatives", ()),
        ),
        edges=Edges.make(
            src=np.array([index[u] for u, *_ in edges], dtype=np.int64),
            dst=np.array([index[v] for _, v, *_ in edges], dtype=np.int64),
            region=np.array([region[key] for *_, key, _ in edges], dtype=np.int64),
            bytes=np.array([data.get("bytes", 0.0) for *_, data in edges]),
        ),
        inputs=graph.graph.get("inputs") or Inputs.make(),
        given_costs=_given_costs(graph, nodes, [data for *_, data in edges]),
        tensors=graph.graph.get("tensors", ()),
    )


def _given_costs(graph: nx.DiGraph, nodes: list[dict], edges: list[dict]) -> GivenCosts | None:
    key = "given_seconds"
    has_ops, has_edges = (all(key in data for data in rows) for rows in (nodes, edges))
    # Foreign graphs do not have counts_memory; without all seconds theirs would be incomplete.
    if "counts_memory" not in graph.graph and not (has_ops and has_edges):
        return None
    ops_s = [read_op_entry(data[key], f"node {v}") for v, data in enumerate(nodes) if has_ops]
    edges_s = [read_edge_entry(data[key], f"edge {e}") for e, data in enumerate(edges) if has_edges]
    return given_costs(
        ops_s if has_ops else None,
        edges_s if has_edges else None,
        counts_memory=bool(graph.graph.get("counts_memory", False)),
    )


def _column(nodes: list[dict], name: str, default: object) -> list:
    """Return an attribute of all nodes, or an empty list if no node has it."""
    has_any = any(name in data for data in nodes)
    return [data.get(name, default) for data in nodes] if has_any else []
