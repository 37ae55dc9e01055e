"""Learning curves: the mean over seeds, with a band from the lowest to the highest.

Shape suffixes: S seeds, X points of the common axis.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from doppler.report.finished import FinishedRun
from doppler.report.report import SummaryRow
from doppler.trace.explain import time_unit

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f", "#76b7b2", "#edc948")
_INK = "#333333"
_PANELS = (("best_s", "best so far"), ("mean_s", "mean of a batch"))
_BASELINES = ("critical_path", "annealing", "clustering")  # drawn as levels to compare with


def save_curves(
    runs: Sequence[FinishedRun], table: Sequence[SummaryRow], path: Path, *, title: str
) -> bool:
    """Draw the runs of one problem and system into a PNG file; False where none was trained.

    table: the averaged rows of the same problem and system, for the levels of baselines.
    """
    trained: dict[str, list[list[dict[str, float]]]] = defaultdict(list)
    for run in runs:
        metrics = [row for row in run.metrics() if "best_s" in row]
        if metrics:
            trained[run.rows[0].method].append(metrics)
    if not trained:
        return False
    lowest = min(row["best_s"] for one in trained.values() for curve in one for row in curve)
    unit_s, symbol = time_unit(lowest)
    figure = Figure(figsize=(12, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (column, name) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        for i, (method, curves) in enumerate(trained.items()):
            _draw_band(axes, curves, column, unit_s, COLOURS[i % len(COLOURS)], method)
        _draw_levels(axes, table, unit_s)
        axes.set_yscale("log")
        axes.set_xlabel("episodes", color=_INK)
        axes.set_ylabel(f"makespan ({symbol})", color=_INK)
        axes.set_title(name, fontsize=10, color=_INK)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.tick_params(axis="both", which="both", labelsize=8)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def band(
    curves: Sequence[Sequence[dict[str, float]]], column: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Episodes [X], and lowest, mean and highest value over seeds [X] where all seeds have one."""
    episodes = sorted({row["episodes"] for curve in curves for row in curve})
    last = min(curve[-1]["episodes"] for curve in curves)
    first = max(curve[0]["episodes"] for curve in curves)
    x_X = np.array([x for x in episodes if first <= x <= last])
    y_SX = np.array(
        [
            np.interp(x_X, [row["episodes"] for row in curve], [row[column] for row in curve])
            for curve in curves
        ]
    )
    return x_X, y_SX.min(axis=0), y_SX.mean(axis=0), y_SX.max(axis=0)


def _draw_band(
    axes: Axes,
    curves: Sequence[Sequence[dict[str, float]]],
    column: str,
    unit_s: float,
    colour: str,
    method: str,
) -> None:
    x_X, low_X, mean_X, high_X = band(curves, column)
    label = f"{method} (n={len(curves)})"
    axes.plot(x_X, mean_X / unit_s, color=colour, linewidth=1.6, label=label)
    axes.fill_between(x_X, low_X / unit_s, high_X / unit_s, color=colour, alpha=0.18, linewidth=0)


def _draw_levels(axes: Axes, table: Sequence[SummaryRow], unit_s: float) -> None:
    styles = dict(zip(_BASELINES, ("--", "-.", ":"), strict=True))
    for row in table:
        if row.method in styles:
            style = styles.pop(row.method)
            level = row.makespan_s / unit_s
            axes.axhline(level, color="#777777", linestyle=style, linewidth=1, label=row.method)
    if table:
        bound = table[0].lower_bound_s / unit_s
        axes.axhline(bound, color="#111111", linewidth=1, label="lower bound")
