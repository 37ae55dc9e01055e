"""Describes a dataflow graph in words: counts, levels, histograms, and how tensors are split."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.graph import DataflowGraph, depth

_MAX_WIDTHS = 60  # level widths that fit into two lines


def describe(graph: DataflowGraph) -> list[str]:
    """Describe a graph in lines of text.

    Args:
        graph: to describe.
    """
    ops, edges = graph.ops, graph.edges
    in_V = np.bincount(edges.dst, minlength=graph.num_ops)
    out_V = np.bincount(edges.src, minlength=graph.num_ops)
    level_V = _levels(graph)
    widths = np.bincount(level_V).tolist()
    lines = [
        f"{graph.name}: {graph.num_ops} ops, {graph.num_edges} edges, {len(graph.inputs)} inputs",
        f"{quantity(ops.flops.sum(), 'FLOP')} in all; ops write "
        f"{quantity(ops.output_bytes.sum(), 'B')}, edges carry {quantity(edges.bytes.sum(), 'B')}, "
        f"inputs hold {quantity(graph.inputs.bytes.sum(), 'B')}",
        f"{len(widths)} levels, widths: {_runs(widths)}",
        f"fan-in: {_histogram(in_V)}; fan-out: {_histogram(out_V)}",
    ]
    grouped_V, num_pinned = ops.group >= 0, int((ops.pinned >= 0).sum())
    if grouped_V.any() or num_pinned:
        lines.append(
            f"{len(np.unique(ops.group[grouped_V]))} groups of {grouped_V.sum()} ops in all; "
            f"{num_pinned} ops are pinned to a device"
        )
    rows = [("kind", "ops", "FLOP", "share", "output")]
    total = ops.flops.sum() or 1.0
    kinds = np.array(ops.kinds)
    for kind in sorted(set(ops.kinds), key=lambda one: -ops.flops[kinds == one].sum()):
        of_kind = kinds == kind
        rows.append(
            (
                kind,
                str(int(of_kind.sum())),
                quantity(ops.flops[of_kind].sum(), ""),
                f"{100 * ops.flops[of_kind].sum() / total:.1f}%",
                quantity(ops.output_bytes[of_kind].sum(), "B"),
            )
        )
    lines += ["", *aligned(rows)]
    splits = split_rows(graph)
    if splits:
        lines += ["", *aligned([("tensor", "kind", "dtype", "shape", "blocks"), *splits])]
    return lines


def counts(graph: DataflowGraph) -> dict[str, Any]:
    """Return what a summary holds about a graph, for programs.

    Args:
        graph: to describe.
    """
    widths = np.bincount(_levels(graph)).tolist()
    edges, ops = graph.edges, graph.ops
    fan_in = np.bincount(edges.dst, minlength=graph.num_ops).tolist()
    fan_out = np.bincount(edges.src, minlength=graph.num_ops).tolist()
    return {
        "num_inputs": len(graph.inputs),
        "num_levels": len(widths),
        "level_widths": widths,
        "fan_in": {str(key): count for key, count in sorted(Counter(fan_in).items())},
        "fan_out": {str(key): count for key, count in sorted(Counter(fan_out).items())},
        "kinds": dict(sorted(Counter(ops.kinds).items())),
        "flops": float(ops.flops.sum()),
        "output_bytes": float(ops.output_bytes.sum()),
        "edge_bytes": float(edges.bytes.sum()),
        "input_bytes": float(graph.inputs.bytes.sum()),
    }


def split_rows(graph: DataflowGraph) -> list[tuple[str, str, str, str, str]]:
    """Return name, kind, dtype, shape and blocks of each tensor that ops compute.

    Blocks are written ``4x2``, or ``4x2 of 3 partials`` if each block is the sum of the results of
    three ops. A graph that does not name its tensors has no rows.

    Args:
        graph: to describe.
    """
    if not graph.ops.boxes or not graph.tensors:
        return []
    starts: dict[int, list[set[int]]] = {}
    kinds: dict[int, str] = {}
    num_ops: Counter[int] = Counter()
    for node, kind, box in zip(
        graph.ops.node.tolist(), graph.ops.kinds, graph.ops.boxes, strict=True
    ):
        own = starts.setdefault(node, [set() for _ in box])
        for points, (start, _) in zip(own, box, strict=True):
            points.add(start)
        kinds[node] = kind
        num_ops[node] += 1
    rows = []
    for node, points in starts.items():
        tensor, parts = graph.tensors[node], [len(one) for one in points]
        partials = num_ops[node] // math.prod(parts)
        blocks = "x".join(map(str, parts)) or "1"
        rows.append(
            (
                tensor.name,
                kinds[node],
                tensor.dtype,
                "x".join(map(str, tensor.shape)) or "scalar",
                blocks + (f" of {partials} partials" if partials > 1 else ""),
            )
        )
    return rows


def quantity(value: float, unit: str) -> str:
    """Write a number with three digits and a prefix: ``1.23 GB``.

    Args:
        value: the number.
        unit: its unit, without a prefix.
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def _levels(graph: DataflowGraph) -> NDArray[np.int64]:
    return depth(graph.num_ops, graph.edges.src, graph.edges.dst)


def _histogram(values: Iterable[int]) -> str:
    return " ".join(f"{key}:{count}" for key, count in sorted(Counter(map(int, values)).items()))


def _runs(widths: list[int]) -> str:
    """Write widths with repetitions: ``4x3 2`` for 4, 4, 4, 2."""
    runs: list[list[int]] = []
    for width in widths:
        if runs and runs[-1][0] == width:
            runs[-1][1] += 1
        else:
            runs.append([width, 1])
    shown = [str(width) if times == 1 else f"{width}x{times}" for width, times in runs]
    more = [f"... {len(shown) - _MAX_WIDTHS} more"] if len(shown) > _MAX_WIDTHS else []
    return " ".join(shown[:_MAX_WIDTHS] + more)


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows as lines whose columns are aligned.

    Args:
        rows: of cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
