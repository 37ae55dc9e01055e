"""The picture of a pipeline schedule: a row for each device, a colour for each kind, memory below.

Shape suffixes: D devices, V ops.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from numpy.typing import NDArray

from doppler.extensions.pipelines.orders import pipeline_of
from doppler.trace import Trace
from doppler.trace.pictures import new_figure, save_figure
from doppler.trace.usage import time_unit

FloatArray = NDArray[np.float64]
COLORS = {"F": "#4e79a7", "I": "#f28e2b", "W": "#59a14f", "B": "#b07aa1"}
_NAMES = {"F": "F forward", "I": "I input gradient", "W": "W weight gradient", "B": "B backward"}
_INK, _DPI, _WIDTH_IN, _ROW_IN, _MEMORY_IN = "#333333", 150, 14.0, 0.42, 1.6
_MOST_LABELS = 400


def held_bytes(trace: Trace) -> list[tuple[FloatArray, FloatArray]]:
    """Return, for each device, times at which its memory changes, and the bytes held from then on.

    Args:
        trace: of a pipeline.
    """
    p, device_V = trace.problem.arrays, trace.placement.device
    changes: list[list[tuple[float, float]]] = [[] for _ in range(trace.problem.num_devices)]
    for r, src in enumerate(p.region_src):
        size = float(p.region_bytes[r])
        if size:
            readers = p.consumers[p.consumer_ptr[r] : p.consumer_ptr[r + 1]]
            changes[device_V[src]].append((float(trace.op_start_s[src]), size))
            changes[device_V[src]].append((float(trace.op_finish_s[readers].max()), -size))
    found = []
    for one in changes:
        ordered = np.array(sorted(one), dtype=np.float64).reshape(-1, 2)
        times, index = np.unique(ordered[:, 0], return_index=True)
        total = np.add.reduceat(ordered[:, 1], index).cumsum() if len(times) else times
        found.append((np.append(0.0, times), np.append(0.0, total)))
    return found


def save_pipeline_picture(trace: Trace, path: str | Path, *, title: str) -> None:
    """Write a PNG atomically; idle time is white.

    Args:
        trace: of a pipeline.
        path: of the file.
        title: of the picture.
    """
    num = trace.problem.num_devices
    rows_in, legend_in = num * _ROW_IN, 0.45
    height_in = 0.5 + rows_in + 0.35 + _MEMORY_IN + 0.5 + legend_in
    figure = new_figure(_WIDTH_IN, height_in, dpi=_DPI)
    left, width = 0.075, 0.905
    axes = figure.add_axes(
        (left, (height_in - 0.5 - rows_in) / height_in, width, rows_in / height_in)
    )
    memory = figure.add_axes((left, (0.5 + legend_in) / height_in, width, _MEMORY_IN / height_in))
    unit_s, symbol = time_unit(trace.makespan_s)
    end = trace.makespan_s / unit_s
    _draw_rows(axes, trace, unit_s)
    _draw_memory(memory, trace, unit_s)
    for each in (axes, memory):
        each.set_xlim(0.0, end)
        each.tick_params(labelsize=8, colors=_INK)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    axes.set_xticklabels([])
    memory.set_xlabel(f"time ({symbol})", fontsize=9, color=_INK)
    kinds = [kind for kind in _NAMES if kind in trace.problem.graph.ops.kinds]
    figure.legend(
        handles=[Patch(color=COLORS[kind], label=_NAMES[kind]) for kind in kinds],
        loc="lower center",
        ncols=len(kinds),
        frameon=False,
        fontsize=9,
    )
    figure.text(left, 1 - 0.2 / height_in, title, fontsize=11, color=_INK, va="center")
    save_figure(figure, path)


def _draw_rows(axes: Axes, trace: Trace, unit_s: float) -> None:
    kinds, device_V = np.array(trace.problem.graph.ops.kinds), trace.placement.device
    start_V, end_V = trace.op_start_s / unit_s, trace.op_finish_s / unit_s
    for kind, color in COLORS.items():
        boxes = [
            [(start_V[v], y), (end_V[v], y), (end_V[v], y + 0.84), (start_V[v], y + 0.84)]
            for v in np.flatnonzero(kinds == kind)
            for y in [device_V[v] + 0.08]
        ]
        axes.add_collection(
            PolyCollection(boxes, facecolors=color, edgecolors="white", linewidths=0.4)
        )
    actions = pipeline_of(trace.problem).actions
    several = trace.problem.num_devices < 1 + max(action.stage for action in actions)
    if len(actions) <= _MOST_LABELS:
        for v, action in enumerate(actions):
            label = f"{action.stage}:{action.microbatch}" if several else str(action.microbatch)
            middle = (start_V[v] + end_V[v]) / 2
            axes.text(
                middle,
                device_V[v] + 0.5,
                label,
                ha="center",
                va="center",
                fontsize=5 if several else 7,
                color="white",
            )
    num = trace.problem.num_devices
    axes.set_ylim(num, 0.0)
    axes.set_yticks(np.arange(num) + 0.5)
    axes.set_yticklabels([f"device {d}" for d in range(num)], fontsize=8, color=_INK)


def _draw_memory(axes: Axes, trace: Trace, unit_s: float) -> None:
    limits = trace.problem.arrays.memory_bytes
    highest = 0.0
    for d, (times, held) in enumerate(held_bytes(trace)):
        x = np.append(times, trace.makespan_s) / unit_s
        axes.step(x, np.append(held, held[-1]), where="post", linewidth=1.0, label=f"device {d}")
        highest = max(highest, float(held.max()))
    if limits.min() <= 1.5 * highest:
        axes.axhline(limits.min(), color=_INK, linewidth=0.8, linestyle="--")
        highest = max(highest, float(limits.min()))
    axes.set_ylim(0.0, 1.1 * highest or 1.0)
    axes.set_ylabel("bytes held", fontsize=9, color=_INK)
