"""Draws a dataflow graph: groups of ops as boxes, levels from left to right.

Shape suffixes: V ops, E edges, G groups, P pairs of groups with an edge.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from numpy.typing import NDArray

from doppler.graph import DataflowGraph, depth
from doppler.graph.levels import find_cycle
from doppler.report.description import quantity
from doppler.trace.gantt import GREY, INK, PALETTE
from doppler.trace.pictures import legend_label, new_figure, save_figure, shorten

_MAX_BOXES = 150
_MAX_LEVELS, _PER_BAND = 180, 9
_BOX_IN, _PITCH_IN, _TALL_IN, _ROW_IN, _BAND_IN = 1.22, 1.52, 0.42, 0.62, 0.3
_TOP_IN, _BOTTOM_IN, _SIDE_IN = 0.5, 0.5, 0.2
_LIFT_IN, _STRIP_IN = 0.41, 0.055
_SOFT = "#5d6675"
_SWEEPS = 8  # passes that order levels by their neighbours


@dataclass(frozen=True, eq=False, kw_only=True)
class _Groups:
    """Groups of ops that are drawn as one box each, and the edges between them.

    Attributes:
        names: texts of the boxes.
        of_V: the box of each op.
        src: [P] box at the start of each edge.
        dst: [P] box at the end of each edge.
        bytes: [P] that each edge carries.
        level_G: the column of each box.
        place_G: the row of each box in its column, around 0.
    """

    names: list[str]
    of_V: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    bytes: NDArray[np.float64]
    level_G: NDArray[np.int64]
    place_G: NDArray[np.float64]


def save_graph_picture(
    graph: DataflowGraph, path: str | Path, *, device_V: Sequence[str] | None = None
) -> None:
    """Draw the graph into a PNG file.

    A box is an op of the program with all its blocks. Its colour shows what the blocks compute, or
    which devices run them. Lines are wider if they carry more bytes. Long graphs continue in the
    next band; producers in another band are named below the box.

    Args:
        graph: what to draw.
        path: of the file.
        device_V: the name of the device that runs each op, [V].
    """
    groups = group_ops(graph)
    x_G, y_G, size_in = _places(groups)
    figure = new_figure(*size_in, dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size_in[0]), ylim=(size_in[1], 0))
    axes.set_axis_off()
    kind_G = _main_kinds(graph, groups)
    names = sorted(set(kind_G if device_V is None else device_V))
    colour = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    _draw_edges(axes, groups, x_G, y_G)
    for g in np.flatnonzero(np.isfinite(y_G)).tolist():
        corner = (float(x_G[g]), float(y_G[g]) - 0.5 * _TALL_IN)
        ops = np.flatnonzero(groups.of_V == g).tolist()
        fill = _pale(colour[kind_G[g]]) if device_V is None else None
        _draw_box(axes, corner, groups.names[g], kind_G[g], len(ops), fill)
        if device_V is not None:
            _draw_shares(axes, corner, Counter(device_V[v] for v in ops), colour)
    levels = int(groups.level_G.max()) + 1
    left_out = f", the first {_MAX_LEVELS} of {levels} levels" if levels > _MAX_LEVELS else ""
    title = (
        f"{shorten(graph.name, 60)}: {graph.num_ops} ops in {len(groups.names)} groups{left_out}, "
    )
    title += f"{quantity(float(graph.ops.flops.sum()), 'FLOP')}; wider lines carry more"
    axes.text(_SIDE_IN, 0.24, title, fontsize=10, color=INK, va="center")
    labels = {name: legend_label(shorten(name, 24)) for name in names[:24]}
    handles = [Patch(facecolor=colour[name], label=label) for name, label in labels.items()]
    figure.legend(handles=handles, loc="lower left", ncols=8, fontsize=9, frameon=False)
    save_figure(figure, path)


def _places(
    groups: _Groups,
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, float]]:
    """Left edge and centre of each box [G] in inches, NaN if it is left out; and the total size."""
    band_G, column_G = np.divmod(groups.level_G, _PER_BAND)
    y_G = np.full(len(groups.names), np.nan)
    top_in = _TOP_IN
    for band in range(min(int(band_G.max()) + 1, _MAX_LEVELS // _PER_BAND)):
        of_band = band_G == band
        half_in = (np.abs(groups.place_G[of_band]).max(initial=0.0) + 0.5) * _ROW_IN
        y_G[of_band] = top_in + half_in + groups.place_G[of_band] * _ROW_IN
        top_in += 2 * half_in + _BAND_IN
    width_in = 2 * _SIDE_IN + (int(column_G.max()) + 1) * _PITCH_IN
    return _SIDE_IN + column_G * _PITCH_IN, y_G, (max(width_in, 8.0), top_in + _BOTTOM_IN)


def group_ops(graph: DataflowGraph) -> _Groups:
    """Group ops into boxes: all blocks of one op of the program, with the sums of its partials.

    If the program is unknown, each op is a box; if that is too many, all ops of a kind and level
    are.

    Args:
        graph: to draw.
    """
    ops, edges = graph.ops, graph.edges
    level_V = depth(graph.num_ops, edges.src, edges.dst)
    by_level = [f"{kind} @{level}" for kind, level in zip(ops.kinds, level_V, strict=True)]
    keys = [
        name.split("[", 1)[0].removesuffix(f".{kind}").removesuffix(".partials")
        if node >= 0
        else name
        for name, kind, node in zip(ops.names, ops.kinds, ops.node, strict=True)
    ]
    if len(set(keys)) > _MAX_BOXES:
        keys = by_level
    # If boxes depend on each other in a circle, group by levels, which cannot.
    return _lay_out(graph, keys) or _lay_out(graph, by_level)  # pyright: ignore[reportReturnType]


def _lay_out(graph: DataflowGraph, keys: Sequence[str]) -> _Groups | None:
    """Boxes by name, in columns and rows; None if they depend on each other in a circle."""
    index = {key: g for g, key in enumerate(dict.fromkeys(keys))}
    of_V = np.array([index[key] for key in keys], dtype=np.int64)
    bytes_of: dict[tuple[int, int], float] = defaultdict(float)
    pairs = zip(of_V[graph.edges.src], of_V[graph.edges.dst], graph.edges.bytes, strict=True)
    for src, dst, size in pairs:
        if src != dst:
            bytes_of[int(src), int(dst)] += float(size)
    pair_P2 = np.array(list(bytes_of), dtype=np.int64).reshape(-1, 2)
    src, dst, num = pair_P2[:, 0], pair_P2[:, 1], len(index)
    if find_cycle(num, src, dst):
        return None
    level_G = depth(num, src, dst)
    # A box without producers goes next to its first reader, not to the far left.
    earliest_G = np.full(num, num)
    np.minimum.at(earliest_G, src, level_G[dst])
    is_source_G = (level_G == 0) & (earliest_G < num)
    level_G = np.where(is_source_G, earliest_G - 1, level_G)
    return _Groups(
        names=[key.split(" @")[0] for key in index],
        of_V=of_V,
        src=src,
        dst=dst,
        bytes=np.array(list(bytes_of.values())),
        level_G=level_G,
        place_G=_order(src, dst, level_G),
    )


def _order(
    src: NDArray[np.int64], dst: NDArray[np.int64], level_G: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Rows of boxes within their levels [G], around 0, so that neighbours are close.

    Source: the barycentre heuristic of Sugiyama, Tagawa and Toda, IEEE Transactions on Systems, Man
    and Cybernetics 1981.
    """
    num = len(level_G)
    members = [np.flatnonzero(level_G == level) for level in range(level_G.max() + 1)]
    place_G = np.zeros(num)
    for boxes in members:
        place_G[boxes] = _centred(len(boxes))
    degree_G = np.bincount(src, minlength=num) + np.bincount(dst, minlength=num)
    for _ in range(_SWEEPS):
        pull_G = np.zeros(num)
        np.add.at(pull_G, src, place_G[dst])
        np.add.at(pull_G, dst, place_G[src])
        centre_G = np.where(degree_G > 0, pull_G / np.maximum(degree_G, 1), place_G)
        for boxes in members:
            place_G[boxes[np.argsort(centre_G[boxes], kind="stable")]] = _centred(len(boxes))
    return place_G


def _centred(count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) - (count - 1) / 2


def _draw_edges(
    axes: Axes, groups: _Groups, x_G: NDArray[np.float64], y_G: NDArray[np.float64]
) -> None:
    """Draw curves within a band, and names of producers in other bands below a box."""
    far: dict[int, list[str]] = defaultdict(list)
    largest, level_G = groups.bytes.max(initial=0.0) or 1.0, groups.level_G
    for src, dst, size in zip(groups.src, groups.dst, groups.bytes, strict=True):
        if np.isnan(y_G[dst]):
            continue
        if level_G[src] // _PER_BAND != level_G[dst] // _PER_BAND:
            far[int(dst)].append(groups.names[src])
            continue
        begin, end = (x_G[src] + _BOX_IN, y_G[src]), (x_G[dst], y_G[dst])
        bend = 0.5 * (end[0] - begin[0])
        # A line that passes other boxes runs between two rows.
        lift = _LIFT_IN if level_G[dst] - level_G[src] > 1 else 0.0
        inner = (begin[0] + bend, begin[1] - lift), (end[0] - bend, end[1] - lift)
        codes = [Outline.MOVETO, Outline.CURVE4, Outline.CURVE4, Outline.CURVE4]
        curve = Outline([begin, *inner, end], codes)
        width = 0.6 + 3.4 * float(np.sqrt(size / largest))
        axes.add_patch(PathPatch(curve, fill=False, color=GREY, lw=width, alpha=0.8, zorder=1))
    for g, names in far.items():
        text, y = shorten(f"from {', '.join(names)}", 30), y_G[g] + 0.5 * _TALL_IN + 0.02
        axes.text(x_G[g], y, text, fontsize=6.5, color=_SOFT, va="top")


def _draw_box(
    axes: Axes,
    corner: tuple[float, float],
    name: str,
    kind: str,
    num_ops: int,
    fill: tuple[float, ...] | None,
) -> None:
    """Draw one box with its texts, white if it has no colour."""
    box = FancyBboxPatch(corner, _BOX_IN, _TALL_IN, boxstyle="round,pad=0,rounding_size=0.05")
    box.set(facecolor=fill or "white", edgecolor=GREY, linewidth=1.0, zorder=2)
    axes.add_patch(box)
    number = "1 op" if num_ops == 1 else f"{num_ops} ops"
    about = number if name == kind else f"{shorten(kind, 14)}, {number}"
    x, y = corner[0] + 0.5 * _BOX_IN, corner[1] + 0.5 * _TALL_IN
    style: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
    axes.text(x, y - 0.085, shorten(name, 17), fontsize=8.5, weight="bold", color=INK, **style)
    axes.text(x, y + 0.065, about, fontsize=6.8, color=_SOFT, **style)


def _draw_shares(
    axes: Axes, corner: tuple[float, float], num_ops: Counter[str], colour: dict[str, str]
) -> None:
    """Draw a strip at the bottom of a box: the share of its ops on each device."""
    x, y = corner[0], corner[1] + _TALL_IN - _STRIP_IN
    for name in sorted(num_ops):
        width = _BOX_IN * num_ops[name] / num_ops.total()
        axes.add_patch(Rectangle((x, y), width, _STRIP_IN, facecolor=colour[name], lw=0, zorder=3))
        x += width


def _main_kinds(graph: DataflowGraph, groups: _Groups) -> list[str]:
    """The kind of most of the work in each box; sums of partials are little work."""
    work: list[Counter[str]] = [Counter() for _ in groups.names]
    for g, kind, flops in zip(groups.of_V, graph.ops.kinds, graph.ops.flops, strict=True):
        work[g][kind] += float(flops) + 1e-30
    return [of_group.most_common(1)[0][0] for of_group in work]


def _pale(colour: str) -> tuple[float, ...]:
    """A light tint that hides what is below it."""
    return tuple(0.8 + 0.2 * part for part in to_rgb(colour))
