"""Draws a trace: rows of device streams, links and interfaces, with the critical chain outlined.

Shape suffixes: V ops, T transfers, N boxes of one layer; C 4 corners or colour channels.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from doppler.trace.events import Trace
from doppler.trace.explain import Explanation, explain
from doppler.trace.memory_picture import boxes_of, draw_memory, memory_legend
from doppler.trace.pictures import legend_label, new_figure, save_figure, shorten
from doppler.trace.usage import (
    InterfaceUse,
    LinkUse,
    busy_seconds,
    interface_holders,
    time_text,
    time_unit,
)

FloatArray = NDArray[np.floating]

MAX_LINKS = 24
MAX_INTERFACES = 16
MAX_LEGEND_ROW = 7
MAX_LABELS = 300
_DPI = 150
_WIDTH_IN, _RIGHT_IN, _TOP_IN, _BOTTOM_IN = 14.0, 0.65, 0.55, 0.55
_DEVICE_IN, _LINK_IN, _GAP_IN, _LEGEND_IN, _MAX_ROWS_IN = 0.42, 0.2, 0.18, 0.24, 16.0
_OP_FILL, _TRANSFER_FILL = 0.74, 0.62  # height of a box, as a share of its row
_MEMORY_IN = 0.3
GREY, CHAIN, INK = "#9aa3ad", "#111111", "#333333"
# Distinct in hue and lightness. Grey and black are for transfers and the critical chain.
PALETTE = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"),
    *("#b07aa1", "#9c755f", "#6b5bd2", "#ff9da7", "#8cd17d", "#d4a6c8"),
)
OTHERS = "#d9cdb8"  # groups that take too little time for a colour of their own


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Positions of rows: y downward in inches from the top of the first row."""

    streams: int
    device_in: float
    link_in: float
    num_device_rows: int
    links: tuple[LinkUse, ...]
    interfaces: tuple[InterfaceUse, ...]
    labels: tuple[str, ...]
    memory_in: float = 0.0  # below the rows of each device, where memory was planned

    @property
    def left_in(self) -> float:
        return 0.3 + max(0.7, 0.085 * max(len(label) for label in self.labels))

    @property
    def width_in(self) -> float:
        return _WIDTH_IN - self.left_in - _RIGHT_IN

    @property
    def height_in(self) -> float:
        gap = _GAP_IN * (bool(self.links) + bool(self.interfaces))
        others = len(self.links) + len(self.interfaces)
        return self.devices_in + gap + others * self.link_in

    @property
    def devices_in(self) -> float:
        """Of all devices, their memory included."""
        num_devices = self.num_device_rows // self.streams
        return self.num_device_rows * self.device_in + num_devices * self.memory_in

    def row_middle(self, row: int) -> float:
        """The middle of a row of the devices."""
        return (row + 0.5) * self.device_in + row // self.streams * self.memory_in

    def memory_bottom(self, device: int) -> float:
        """Where the memory of a device is empty."""
        return (device + 1) * (self.streams * self.device_in + self.memory_in)

    def op_middle(self, trace: Trace) -> FloatArray:
        """The middle of each op's row [V]."""
        row_V = trace.placement.device * self.streams + trace.op_stream
        return (row_V + 0.5) * self.device_in + trace.placement.device * self.memory_in

    def link_middle(self) -> FloatArray:
        """The middle of each link's row."""
        top = self.devices_in + _GAP_IN
        return top + (np.arange(len(self.links)) + 0.5) * self.link_in

    def interface_middle(self) -> FloatArray:
        """The middle of each interface's row."""
        top = self.devices_in + 2 * _GAP_IN + len(self.links) * self.link_in
        return top + (np.arange(len(self.interfaces)) + 0.5) * self.link_in

    def transfer_middle(self, trace: Trace) -> FloatArray:
        """The middle of each transfer's row [T], NaN where its link is not shown."""
        row = {(use.src, use.dst): y for use, y in zip(self.links, self.link_middle(), strict=True)}
        pairs = zip(trace.transfer_src.tolist(), trace.transfer_dst.tolist(), strict=True)
        return np.array([row.get(pair, np.nan) for pair in pairs], dtype=np.float64)


def save_gantt(trace: Trace, path: str | Path, *, title: str | None = None) -> None:
    """Draw a schedule as a PNG file, atomically.

    Ops have the colour of their operation in the program, or of their kind if that is unknown;
    transfers are grey. The number at the right is the utilisation of each row. Transfers between
    hosts are also shown in the rows of network interfaces. Of many links and interfaces only the
    busiest are shown.

    Args:
        trace: what is drawn.
        path: of the PNG file.
        title: of the picture; by default graph and cluster.
    """
    save_figure(_draw(trace, title), path)


def _draw(trace: Trace, title: str | None) -> Figure:
    explanation = explain(trace)
    rows = _lay_out(trace, explanation)
    color_VC, legend = _op_colors(trace)
    legend_in = 0.06 + _LEGEND_IN * (1 + (len(legend) > MAX_LEGEND_ROW))
    height_in = _TOP_IN + rows.height_in + _BOTTOM_IN + legend_in
    figure = new_figure(_WIDTH_IN, height_in, dpi=_DPI)
    left, bottom = rows.left_in / _WIDTH_IN, (_BOTTOM_IN + legend_in) / height_in
    axes = figure.add_axes((left, bottom, rows.width_in / _WIDTH_IN, rows.height_in / height_in))
    unit_s, symbol = time_unit(trace.makespan_s)
    end = (trace.makespan_s or 1.0) / unit_s
    axes.set_xlim(0.0, end)
    axes.set_ylim(rows.height_in, 0.0)
    axes.set_xlabel(f"time ({symbol})", fontsize=9, color=INK)
    _draw_frame(axes, trace, rows, end)
    _draw_transfers(axes, trace, rows, unit_s)
    _draw_ops(axes, trace, rows, unit_s, color_VC)
    bottoms = [rows.memory_bottom(d) for d in range(trace.problem.num_devices)]
    draw_memory(axes, trace, bottoms, rows.memory_in, unit_s)
    _draw_chain(axes, trace, explanation, rows, unit_s)
    _draw_title(figure, trace, explanation, rows, title)
    if trace.memory is not None:
        legend += memory_legend(trace)
    _draw_legend(figure, legend)
    return figure


def _lay_out(trace: Trace, explanation: Explanation) -> _Rows:
    links = tuple(sorted(explanation.links[:MAX_LINKS], key=lambda use: (use.src, use.dst)))
    streams = trace.rules.streams
    num_device_rows = trace.problem.num_devices * streams
    device_in = _DEVICE_IN if streams == 1 else 0.6 * _DEVICE_IN
    interfaces = tuple(
        sorted(
            explanation.interfaces[:MAX_INTERFACES],
            key=lambda use: (use.host, use.way == "in", use.nic),
        )
    )
    others_in = (len(links) + len(interfaces)) * _LINK_IN
    memory_in = 0.0 if trace.memory is None else _MEMORY_IN
    memories_in = trace.problem.num_devices * memory_in
    shrink = min(1.0, _MAX_ROWS_IN / (num_device_rows * device_in + memories_in + others_in))
    labels = [
        shorten(name, 22) + (f" / {stream}" if streams > 1 else "")
        for name in explanation.device_names
        for stream in range(streams)
    ]
    return _Rows(
        streams=streams,
        device_in=device_in * shrink,
        memory_in=memory_in * shrink,
        link_in=_LINK_IN * shrink,
        num_device_rows=num_device_rows,
        links=links,
        interfaces=interfaces,
        labels=(
            *(*labels, *(f"{use.src} → {use.dst}" for use in links)),
            *(interface_label(use, trace.problem.cluster.nics) for use in interfaces),
        ),
    )


def interface_label(use: InterfaceUse, nics: int) -> str:
    """Name an interface: its host, its number if there are several, and its direction."""
    return f"host {use.host}" + (f" nic {use.nic}" if nics > 1 else "") + f" {use.way}"


def op_groups(names: Sequence[str], kinds: Sequence[str], nodes: Sequence[int]) -> list[str]:
    """Say what each op is a block of: the op of the program, or its kind if that is unknown.

    Args:
        names: of ops, ``AB[0,1]`` for a block of AB.
        kinds: of ops.
        nodes: of the program, -1 if unknown.
    """
    bases: dict[int, set[str]] = defaultdict(set)
    for name, node in zip(names, nodes, strict=True):
        bases[node].add(name.split("[", 1)[0])

    def label(kind: str, node: int) -> str:
        if node < 0:
            return kind
        if len(bases[node]) > 1:
            return f"{kind} (node {node})"
        (base,) = bases[node]
        return base if base.endswith(f".{kind}") or base == kind else f"{base} ({kind})"

    return [label(kind, node) for kind, node in zip(kinds, nodes, strict=True)]


def _op_colors(trace: Trace) -> tuple[FloatArray, list[tuple[str, str]]]:
    """A colour for each op [V, C], and the legend in the order of the program.

    Only the groups of ops that take longest have their own colours.
    """
    ops = trace.problem.graph.ops
    groups = op_groups(ops.names, ops.kinds, ops.node.tolist())
    seconds = dict.fromkeys(groups, 0.0)
    for group, one_s in zip(groups, (trace.op_finish_s - trace.op_start_s).tolist(), strict=True):
        seconds[group] += one_s
    longest = sorted(seconds, key=lambda group: -seconds[group])[: len(PALETTE)]
    shown = [group for group in seconds if group in set(longest)]
    color = dict(zip(shown, PALETTE, strict=False))
    legend = [(shorten(group, 22), color[group]) for group in shown]
    if len(seconds) > len(shown):
        legend.append((f"{len(seconds) - len(shown)} smaller ones", OTHERS))
    return to_rgba_array([color.get(group, OTHERS) for group in groups]), legend


def _draw_frame(axes: Axes, trace: Trace, rows: _Rows, end: float) -> None:
    """Draw bands behind the rows, their names to the left and their utilisation to the right."""
    bands: list[tuple[float, float, float]] = []
    for row in range(rows.num_device_rows):
        d, stream = divmod(row, rows.streams)
        on = (trace.placement.device == d) & (trace.op_stream == stream)
        busy_s = busy_seconds(trace.op_start_s[on], trace.op_finish_s[on])
        share = busy_s / (trace.makespan_s or 1.0)
        bands.append((rows.row_middle(row), rows.device_in, share))
    for use, middle in zip(rows.links, rows.link_middle().tolist(), strict=True):
        bands.append((middle, rows.link_in, use.utilisation))
    for use, middle in zip(rows.interfaces, rows.interface_middle().tolist(), strict=True):
        bands.append((middle, rows.link_in, use.utilisation))
    for i, (middle, height, share) in enumerate(bands):
        shade = "#f2f3f5" if i % 2 == 0 else "#f9f9fb"
        axes.axhspan(middle - height / 2, middle + height / 2, color=shade, lw=0, zorder=0)
        size = min(9.0 if i < rows.num_device_rows else 7.5, 60.0 * height)
        left, right = (rows.labels[i], 0.0, -6, "right"), (f"{share:.0%}", end, 6, "left")
        for text, x, offset, side in (left, right):
            axes.annotate(
                text,
                (x, middle),
                (offset, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=size,
                color=INK,
            )
    axes.set_yticks([])
    axes.grid(axis="x", color="white", linewidth=1.0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8, colors=INK, length=3)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color("#c5cad0")


def _draw_transfers(axes: Axes, trace: Trace, rows: _Rows, unit_s: float) -> None:
    middle_T = rows.transfer_middle(trace)
    drawn = [(np.isfinite(middle_T), middle_T)]
    holders = interface_holders(trace) if rows.interfaces else {}
    for use, middle in zip(rows.interfaces, rows.interface_middle().tolist(), strict=True):
        drawn.append((holders[use.host, use.nic, use.way], np.full(len(middle_T), middle)))
    boxes = [
        box
        for on, y_T in drawn
        for box in boxes_of(
            trace.transfer_start_s[on] / unit_s,
            trace.transfer_finish_s[on] / unit_s,
            y_T[on],
            _TRANSFER_FILL * rows.link_in,
        )
    ]
    # Without contention transfers overlap: translucent boxes are darker where they do.
    alpha = 0.45 if trace.rules.contention == "none" else 1.0
    axes.add_collection(
        PolyCollection(boxes, facecolors=GREY, alpha=alpha, linewidths=0.0, zorder=2),
        autolim=False,
    )


def _draw_ops(axes: Axes, trace: Trace, rows: _Rows, unit_s: float, color_VC: FloatArray) -> None:
    """Draw the boxes of the ops, with their names if these fit."""
    names, middle_V = trace.problem.graph.ops.names, rows.op_middle(trace)
    start, finish = trace.op_start_s / unit_s, trace.op_finish_s / unit_s
    width_in = (finish - start) * rows.width_in / (finish.max() or 1.0)
    # A white border separates neighbours, where a box is wide enough to have one.
    border = np.where(width_in > 0.04, 0.5, 0.0)
    boxes = boxes_of(start, finish, middle_V, _OP_FILL * rows.device_in)
    axes.add_collection(
        PolyCollection(boxes, facecolors=color_VC, edgecolors="white", linewidths=border, zorder=3),
        autolim=False,
    )
    size = min(7.0, 26.0 * rows.device_in)
    fits = width_in > np.array([0.6 * size / 72 * len(name) + 0.1 for name in names])
    widest = np.argsort(-width_in, kind="stable")[:MAX_LABELS]
    luminance_V = color_VC[:, :3] @ np.array([0.299, 0.587, 0.114])
    for v in widest[fits[widest]].tolist():
        axes.text(
            float(0.5 * (start[v] + finish[v])),
            float(middle_V[v]),
            names[v],
            ha="center",
            va="center_baseline",
            fontsize=size,
            color="white" if luminance_V[v] < 0.6 else "#222222",
            zorder=6,
        )


def _draw_chain(
    axes: Axes, trace: Trace, explanation: Explanation, rows: _Rows, unit_s: float
) -> None:
    """Outline the chain and connect the rows that it goes through.

    Consecutive tasks on one row share an outline, since single outlines would hide short tasks.
    """
    op_V, transfer_T = rows.op_middle(trace), rows.transfer_middle(trace)
    near = 0.002 * trace.makespan_s / unit_s
    runs: list[tuple[float, float, float, float]] = []  # begin, end, middle, height
    hops: list[list[tuple[float, float]]] = []
    for step in explanation.chain:
        if step.kind not in ("op", "transfer"):
            continue  # what memory added has colours of its own
        is_op = step.kind == "op"
        middle = float((op_V if is_op else transfer_T)[step.id])
        height = _OP_FILL * rows.device_in if is_op else _TRANSFER_FILL * rows.link_in
        begin, end = step.start_s / unit_s, step.finish_s / unit_s
        if np.isnan(middle):
            continue
        if runs and runs[-1][2] == middle and begin <= runs[-1][1] + near:
            runs[-1] = (runs[-1][0], end, middle, height)
            continue
        if runs:
            hops.append([(begin, runs[-1][2]), (begin, middle)])
        runs.append((begin, end, middle, height))
    begin_N, end_N, middle_N, height_N = np.array(runs).T
    outlines = PolyCollection(
        boxes_of(begin_N, end_N, middle_N, height_N),
        facecolors="none",
        edgecolors=CHAIN,
        linewidths=1.3,
        joinstyle="miter",
        clip_on=False,
        zorder=5,
    )
    axes.add_collection(outlines, autolim=False)
    lines = LineCollection(hops, colors=CHAIN, linewidths=0.9, alpha=0.65, zorder=1.8)
    axes.add_collection(lines, autolim=False)


def _draw_title(
    figure: Figure, trace: Trace, explanation: Explanation, rows: _Rows, title: str | None
) -> None:
    if title is None:
        title = f"{trace.problem.graph.name} on {trace.problem.cluster.name}"
    facts = f"makespan {time_text(trace.makespan_s)}, {trace.system_kind}"
    if len(explanation.links) > len(rows.links):
        facts += f"; the {len(rows.links)} busiest of {len(explanation.links)} links are shown"
    if len(explanation.interfaces) > len(rows.interfaces):
        facts += f"; {len(rows.interfaces)} of {len(explanation.interfaces)} interfaces"
    y = 1.0 - 0.3 / figure.get_figheight()
    figure.text(
        rows.left_in / _WIDTH_IN,
        y,
        shorten(title, 60),
        fontsize=12,
        weight="bold",
        color=CHAIN,
        va="center",
    )
    figure.text(
        1.0 - _RIGHT_IN / _WIDTH_IN, y, facts, fontsize=9, color=INK, va="center", ha="right"
    )


def _draw_legend(figure: Figure, legend: list[tuple[str, str]]) -> None:
    handles = [
        *(Patch(facecolor=color, label=legend_label(label)) for label, color in legend),
        Patch(facecolor=GREY, label="transfer"),
        Patch(facecolor="white", edgecolor=CHAIN, linewidth=1.2, label="critical chain"),
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=(len(handles) + 1) // 2 if len(legend) > MAX_LEGEND_ROW else len(handles),
        fontsize=8,
        frameon=False,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
        borderaxespad=0.3,
    )
