"""Validates a DataflowGraph; every error is one line that says where it is.

Shape suffixes: V ops, E edges.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from doppler.graph.alternatives import check_alternatives
from doppler.graph.levels import find_cycle
from doppler.graph.reads import check_blocks, regions_of_reads
from doppler.support.errors import InputError

if TYPE_CHECKING:
    from doppler.graph.dataflow import DataflowGraph


def validate(graph: "DataflowGraph") -> None:
    """Refuse a graph whose columns contradict each other, or that has a cycle.

    Args:
        graph: to check.

    Raises:
        InputError: names the op, edge or input.
    """
    _check_ops(graph)
    _check_edges(graph)
    _check_inputs(graph)
    if graph.given_costs is not None:
        _check_given_costs(graph)
    _check_acyclic(graph)
    check_blocks(graph)
    if graph.ops.reads:
        regions_of_reads(graph)  # raises if reads and edges differ


def _where(graph: "DataflowGraph") -> str:
    return f"graph {graph.name!r}"


def _op(graph: "DataflowGraph", v: int) -> str:
    return f"op {v} ({graph.ops.names[v]!r})"


def _edge(graph: "DataflowGraph", e: int) -> str:
    return f"edge {e} ({graph.edges.src[e]} -> {graph.edges.dst[e]})"


def _check_ops(graph: "DataflowGraph") -> None:
    ops, where, num = graph.ops, _where(graph), len(graph.ops)
    if num == 0:
        raise InputError(f"{where}: has no ops")
    for column in (
        *("names", "kinds", "dtypes", "read_bytes", "output_bytes"),
        *("node", "block", "group", "pinned"),
    ):
        if len(getattr(ops, column)) != num:
            raise InputError(f"{where}: {len(getattr(ops, column))} op {column} for {num} ops")
    check_alternatives(ops.alternatives, where)
    for column in ("kernels", "reads", "boxes", "alternatives"):
        if len(getattr(ops, column)) not in (0, num):
            raise InputError(f"{where}: {len(getattr(ops, column))} {column} for {num} ops")
    for column in ("flops", "read_bytes", "output_bytes"):
        _check_cost(getattr(ops, column), where, column, partial(_op, graph))
    for column in ("group", "pinned"):
        bad = np.flatnonzero(getattr(ops, column) < -1)
        if len(bad):
            raise InputError(
                f"{where}: {_op(graph, bad[0])} has {column} {getattr(ops, column)[bad[0]]}: "
                "must be at least 0, or -1 for none"
            )


def _check_edges(graph: "DataflowGraph") -> None:
    edges, where, num = graph.edges, _where(graph), len(graph.ops)
    for column in ("dst", "region", "bytes"):
        if len(getattr(edges, column)) != len(edges):
            raise InputError(
                f"{where}: {len(edges)} edge src, {len(getattr(edges, column))} {column}"
            )
    for end in (edges.src, edges.dst):
        bad = np.flatnonzero((end < 0) | (end >= num))
        if len(bad):
            raise InputError(
                f"{where}: {_edge(graph, bad[0])} names op {end[bad[0]]}, "
                f"but the ops are 0 to {num - 1}"
            )
    bad = np.flatnonzero(edges.src == edges.dst)
    if len(bad):
        raise InputError(f"{where}: {_edge(graph, bad[0])} makes an op feed itself")
    bad = np.flatnonzero(edges.region < 0)
    if len(bad):
        raise InputError(
            f"{where}: {_edge(graph, bad[0])} has region {edges.region[bad[0]]}: must be at least 0"
        )
    _check_cost(edges.bytes, where, "bytes", partial(_edge, graph))
    _check_regions(graph, edges.bytes, "bytes")


def _check_given_costs(graph: "DataflowGraph") -> None:
    given, where = graph.given_costs, _where(graph)
    assert given is not None
    ops_s, edges_s = given.op_seconds, given.transfer_seconds
    num_ops = graph.num_ops if ops_s is None else len(ops_s)
    num_edges = graph.num_edges if edges_s is None else len(edges_s)
    if (num_ops, num_edges) != (graph.num_ops, graph.num_edges):
        raise InputError(
            f"{where}: given costs for {num_ops} ops and {num_edges} edges, but it has "
            f"{graph.num_ops} and {graph.num_edges}"
        )
    if ops_s is not None:
        # Some devices may be unable to run an op, but not all.
        never_V = (ops_s == np.inf).reshape(num_ops, -1).all(axis=1)
        for seconds_V in _columns(ops_s):
            column_V = np.where((seconds_V == np.inf) & ~never_V, 0.0, seconds_V)
            _check_cost(column_V, where, "given seconds", partial(_op, graph))
    if edges_s is not None:
        if edges_s.shape[1:] not in ((), (len(given.kinds),) * 2):
            raise InputError(f"{where}: given seconds of {num_edges} edges are {edges_s.shape}")
        for seconds_E in _columns(edges_s):
            known_E = seconds_E if edges_s.ndim == 1 else np.nan_to_num(seconds_E, posinf=np.inf)
            _check_cost(known_E, where, "given seconds", partial(_edge, graph))
            _check_regions(graph, known_E, "given seconds")


def _columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values by column: one row of numbers for all ops or edges at a time."""
    return values.reshape(len(values), math.prod(values.shape[1:])).T


def _check_acyclic(graph: "DataflowGraph") -> None:
    cycle = find_cycle(len(graph.ops), graph.edges.src, graph.edges.dst)
    if cycle:
        shown = " -> ".join(str(v) for v in [*cycle[:6], *(["..."] if len(cycle) > 6 else [])])
        raise InputError(
            f"{_where(graph)}: cycle through {_op(graph, cycle[0])}: {shown} -> {cycle[0]}"
        )


def _check_cost(values: NDArray[np.float64], where: str, column: str, name) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise InputError(
            f"{where}: {name(bad[0])} has {column} {values[bad[0]]:g}: "
            "must be finite and not negative"
        )


def _check_regions(graph: "DataflowGraph", values_E: NDArray[np.float64], column: str) -> None:
    edges, where = graph.edges, _where(graph)
    order_E = np.lexsort((edges.dst, edges.region, edges.src))
    src_E, region_E, dst_E = edges.src[order_E], edges.region[order_E], edges.dst[order_E]
    same_E = (src_E[1:] == src_E[:-1]) & (region_E[1:] == region_E[:-1])
    bad = np.flatnonzero(same_E & (dst_E[1:] == dst_E[:-1]))
    if len(bad):
        raise InputError(f"{where}: {_edge(graph, int(order_E[bad[0] + 1]))} appears twice")
    sorted_E = values_E[order_E]
    bad = np.flatnonzero(same_E & (sorted_E[1:] != sorted_E[:-1]))
    if len(bad):
        one, other = int(order_E[bad[0]]), int(order_E[bad[0] + 1])
        raise InputError(
            f"{where}: {_edge(graph, one)} and {_edge(graph, other)} carry the same region with "
            f"{column} {values_E[one]:g} and {values_E[other]:g}"
        )


def _check_inputs(graph: "DataflowGraph") -> None:
    inputs, num_ops, where = graph.inputs, len(graph.ops), _where(graph)
    for column in ("node", "block", "bytes", "consumers"):
        if len(getattr(inputs, column)) != len(inputs):
            raise InputError(
                f"{where}: {len(getattr(inputs, column))} input {column} for {len(inputs)} inputs"
            )
    _check_cost(inputs.bytes, where, "bytes", lambda i: f"input {i} ({inputs.names[i]!r})")
    if len(inputs.boxes) not in (0, len(inputs)):
        raise InputError(f"{where}: {len(inputs.boxes)} input boxes for {len(inputs)} inputs")
    for name, consumers in zip(inputs.names, inputs.consumers, strict=True):
        for op in consumers:
            if not 0 <= op < num_ops:
                raise InputError(
                    f"{where}: input {name!r} feeds op {op}, but the ops are 0 to {num_ops - 1}"
                )
