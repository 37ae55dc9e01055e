"""A dataflow graph as a picture: levels from left to right, ops coloured by what they are.

Shape suffixes: V ops, E edges.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from doppler.graph import DataflowGraph, depth
from doppler.report.description import quantity

_COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"),
    *("#b07aa1", "#9c755f", "#6b5bd2", "#ff9da7", "#8cd17d", "#9aa3ad"),
)
_MAX_WIDTH_IN, _MAX_HEIGHT_IN, _DPI = 40.0, 16.0, 110
_SWEEPS = 8  # of ordering levels by their neighbours


def save_graph_picture(
    graph: DataflowGraph,
    path: str | Path,
    *,
    group_V: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Draw the graph into a PNG file.

    Args:
        graph: what to draw.
        path: of the file.
        group_V: what an op's colour stands for, [V]; its kind by default, a device for placements.
        title: above the picture.
    """
    groups = list(graph.ops.kinds if group_V is None else group_V)
    x_V, y_V = layout(graph)
    levels, height = int(x_V.max()) + 1, float(np.ptp(y_V)) + 1
    size = (
        float(np.clip(0.34 * levels + 1.5, 6.0, _MAX_WIDTH_IN)),
        float(np.clip(0.17 * height + 1.4, 3.0, _MAX_HEIGHT_IN)),
    )
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points_V = np.stack([x_V, y_V], axis=1)
    edges = graph.edges
    heavy_E = edges.bytes / max(float(edges.bytes.max(initial=0.0)), 1e-30)
    axes.add_collection(
        LineCollection(
            np.stack([points_V[edges.src], points_V[edges.dst]], axis=1).tolist(),
            linewidths=(0.3 + 1.2 * np.sqrt(heavy_E)).tolist(),
            colors="#00000030",
            zorder=1,
        )
    )
    work_V = graph.ops.flops / max(float(graph.ops.flops.max()), 1e-30)
    dot = float(np.clip(6000 / graph.num_ops, 6, 60))
    names = sorted(set(groups))
    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    axes.scatter(
        x_V,
        y_V,
        s=dot * (0.4 + 0.6 * np.sqrt(work_V)),
        c=[colour[one] for one in groups],
        linewidths=0,
        zorder=2,
    )
    handles = [Line2D([], [], marker="o", ls="", color=colour[name], label=name) for name in names]
    figure.legend(handles=handles[:24], loc="outside lower center", ncols=8, frameon=False)
    axes.set_title(
        title
        or f"{graph.name}: {graph.num_ops} ops in {levels} levels, "
        f"{quantity(float(graph.ops.flops.sum()), 'FLOP')}; larger dots compute more, "
        "wider lines carry more",
        fontsize=9,
    )
    axes.set_axis_off()
    figure.savefig(Path(path))


def layout(graph: DataflowGraph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where each op is drawn [V], [V]: its level, and a place that keeps neighbours together.

    Source: the barycentre heuristic of Sugiyama, Tagawa and Toda, IEEE Transactions on Systems,
    Man and Cybernetics 1981.
    """
    edges = graph.edges
    level_V = depth(graph.num_ops, edges.src, edges.dst)
    # An op without producers is drawn next to its first reader, not at the far left.
    earliest_V = np.full(graph.num_ops, graph.num_ops)
    np.minimum.at(earliest_V, edges.src, level_V[edges.dst])
    is_source_V = level_V == 0
    level_V = np.where(is_source_V & (earliest_V < graph.num_ops), earliest_V - 1, level_V)
    members = defaultdict(list)
    for v, level in enumerate(level_V.tolist()):
        members[level].append(v)
    y_V = np.empty(graph.num_ops)
    for ops in members.values():
        y_V[ops] = _centred(len(ops))
    degree_V = np.bincount(edges.src, minlength=graph.num_ops) + np.bincount(
        edges.dst, minlength=graph.num_ops
    )
    for _ in range(_SWEEPS):
        pull_V = np.zeros(graph.num_ops)
        np.add.at(pull_V, edges.src, y_V[edges.dst])
        np.add.at(pull_V, edges.dst, y_V[edges.src])
        centre_V = np.where(degree_V > 0, pull_V / np.maximum(degree_V, 1), y_V)
        for ops in members.values():
            order = np.argsort(centre_V[ops], kind="stable")
            y_V[np.array(ops)[order]] = _centred(len(ops))
    return level_V.astype(np.float64), y_V


def _centred(count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) - (count - 1) / 2
