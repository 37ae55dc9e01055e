"""Draws memory below a trace: what each device holds, and its copies to and from the host.

Shape suffixes: N boxes; C 4 corners.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray

from doppler.trace.events import HostKind, Trace

FloatArray = NDArray[np.floating]

IN_USE, LIMIT = "#dfe7ef", "#9aa3ad"
# Colour of each kind, and its height above the bottom of the memory, as a share.
KINDS: dict[HostKind, tuple[str, float]] = {
    "evict": ("#c2553a", 0.75),
    "load": ("#2f7f6f", 0.4),
    "recompute": ("#8c6bb1", 0.5),
}


def boxes_of(
    start: FloatArray, finish: FloatArray, middle: FloatArray, height: float | FloatArray
) -> list[FloatArray]:
    """The corners [4, 2] of each of N boxes."""
    low, high = middle - 0.5 * height, middle + 0.5 * height
    x_NC = np.stack([start, finish, finish, start], axis=1)
    return list(np.stack([x_NC, np.stack([low, low, high, high], axis=1)], axis=2))


def memory_legend(trace: Trace) -> list[tuple[str, str]]:
    """Words and colours of what is drawn."""
    assert trace.memory is not None
    kinds = [(kind, color) for kind, (color, _) in KINDS.items() if kind in trace.memory.kinds]
    return [("in use", IN_USE), *kinds]


def draw_memory(
    axes: Axes, trace: Trace, bottoms: Sequence[float], height_in: float, unit_s: float
) -> None:
    """Draw below each device its memory in use, the limit, evictions and loads.

    Draws nothing if memory was not planned.

    Args:
        axes: to draw on.
        trace: of the execution.
        bottoms: y of empty memory for each device; y grows downward.
        height_in: height of each drawing in inches.
        unit_s: unit of the time axis in seconds.
    """
    if (more := trace.memory) is None:
        return
    full = 0.92 * height_in
    for held, bottom, limit in zip(more.in_use, bottoms, more.limit_bytes.tolist(), strict=True):
        if len(held) == 0:
            continue
        most = limit if np.isfinite(limit) else float(held[:, 1].max())
        times = np.append(held[:, 0], trace.makespan_s) / unit_s
        top = bottom - full * np.append(held[:, 1], held[-1, 1]) / (most or 1.0)
        axes.fill_between(times, bottom, top, step="post", color=IN_USE, linewidth=0, zorder=1)
        axes.hlines(bottom - full, 0.0, float(times[-1]), color=LIMIT, linewidth=0.6, zorder=1.5)
    for kind, (color, lane) in KINDS.items():
        on = more.of(kind)
        middle = np.array([bottoms[d] for d in more.device[on]]) - lane * height_in
        start, finish = more.start_s[on] / unit_s, more.finish_s[on] / unit_s
        boxes = boxes_of(start, finish, middle, 0.28 * height_in) if on.any() else []
        axes.add_collection(
            PolyCollection(boxes, facecolors=color, linewidths=0.0, zorder=3), autolim=False
        )
