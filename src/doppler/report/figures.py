"""Figures of many runs: learning curves, and makespans over evaluations."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from doppler.report.finished import FinishedRun
from doppler.report.tables import method_labels
from doppler.trace.gantt import PALETTE
from doppler.trace.pictures import legend_label, new_figure, save_figure
from doppler.trace.usage import time_unit

_INK = "#333333"
_PANELS = {"best_s": "best so far", "mean_s": "mean of a batch"}
_LEVELS = {"critical_path": "--", "etf": "-.", "estimates_then_anneal": ":"}  # to compare with


def save_curves(
    runs: Sequence[FinishedRun], table: pd.DataFrame, path: Path, *, title: str
) -> bool:
    """Draw the learning curves of one problem and system into a PNG file.

    Args:
        runs: of the problem and system.
        table: their summary, for the levels of baselines.
        path: of the file.
        title: above the figure.

    Returns:
        False, and no file, if no run was trained.
    """
    curves = _curves(runs, table)
    if not curves:
        return False
    lowest_s = min(one["best_s"].min() for of_method in curves.values() for one in of_method)
    unit_s, symbol = time_unit(lowest_s)
    figure = _figure(12, 4.2)
    ends = {int(one["episodes"].max()) for of_method in curves.values() for one in of_method}
    for axes, (column, name) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        for i, (method, of_method) in enumerate(curves.items()):
            found = band(of_method, column) / unit_s
            colour = PALETTE[i % len(PALETTE)]
            label = f"{method} (n={len(of_method)})"
            axes.plot(found.index, found["mean"], color=colour, linewidth=1.6, label=label)
            axes.fill_between(
                found.index, found["low"], found["high"], color=colour, alpha=0.18, linewidth=0
            )
        _draw_levels(axes, table, unit_s)
        axes.set_yscale("log")
        _tick_budgets(axes, ends)
        _dress(axes, "episodes", f"makespan ({symbol})")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_title(name, fontsize=10, color=_INK, loc="left")
    _finish(figure, figure.axes[0], title, path)
    return True


def _curves(runs: Sequence[FinishedRun], table: pd.DataFrame) -> dict[str, list[pd.DataFrame]]:
    """Learning curves over episodes, by the names of methods in tables."""
    keys = zip(table["method"], table["variant"], table["budget"], strict=True)
    labels = dict(zip(keys, method_labels(table), strict=True))
    curves: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for run in runs:
        needed, row = ["episodes", *_PANELS], run.rows[0]
        if set(needed) <= set(run.metrics) and len(curve := run.metrics.dropna(subset=needed)):
            curves[labels[row.method, row.variant, row.allowed]].append(curve)
    return curves


def band(curves: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """Return lowest, mean and highest value over seeds, at episodes where all seeds have one.

    Args:
        curves: one per seed.
        column: of the curves.
    """
    series = [one.groupby("episodes")[column].last() for one in curves]
    by_seed = pd.concat(series, axis=1).sort_index()
    inside = by_seed.interpolate("index", limit_area="inside").dropna()
    return pd.DataFrame(
        {"low": inside.min(axis=1), "mean": inside.mean(axis=1), "high": inside.max(axis=1)}
    )


def save_effort(table: pd.DataFrame, path: Path, *, title: str) -> bool:
    """Draw the makespan over evaluations, a line per method of one problem and system.

    Error bars are the standard deviation over seeds. Rows of one training (``doppler trained``) are
    left out, and so are methods with a single budget or with several settings for one budget.

    Args:
        table: a summary.
        path: of the file.
        title: above the figure.

    Returns:
        False, and no file, if no method has two budgets.
    """
    drawn = {
        str(method): rows.sort_values("evaluations")
        for method, rows in table.groupby("method", sort=False)
        if rows["evaluations"].nunique() == len(rows) > 1 and " " not in str(method)
    }
    if not drawn:
        return False
    unit_s, symbol = time_unit(min(rows["makespan_s"].min() for rows in drawn.values()))
    figure = _figure(9, 4.2)
    axes = figure.subplots()
    for i, (method, rows) in enumerate(drawn.items()):
        axes.errorbar(
            rows["evaluations"],
            rows["makespan_s"] / unit_s,
            yerr=rows["spread_s"] / unit_s,
            **{"color": PALETTE[i % len(PALETTE)], "marker": "o", "markersize": 4},
            **{"capsize": 3, "linewidth": 1.6},
            label=f"{method} (n={rows['seeds'].min()})",
        )
    _draw_levels(axes, table.assign(method=""), unit_s)
    axes.set_xscale("log")
    _tick_budgets(axes, {int(one) for rows in drawn.values() for one in rows["evaluations"]})
    _dress(axes, "evaluations", f"makespan ({symbol})")
    _finish(figure, axes, title, path)
    return True


def _tick_budgets(axes: Axes, ends: set[int]) -> None:
    """Put ticks at the ends of budgets, and further ones between them if there is only one."""
    ticks = sorted(ends)
    if len(ticks) == 1 and axes.get_xscale() == "linear":
        steps = MaxNLocator(5, integer=True).tick_values(0, ticks[0])
        ticks = [int(x) for x in steps if 0 <= x < 0.93 * ticks[0]] + ticks
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_levels(axes: Axes, table: pd.DataFrame, unit_s: float) -> None:
    """Draw lines for baselines, and for the lower bound if it is known."""
    levels_s = table.drop_duplicates("method").set_index("method")["makespan_s"].to_dict()
    for method, style in _LEVELS.items():
        if method in levels_s:
            level = levels_s[method] / unit_s
            axes.axhline(level, color="#777777", linestyle=style, linewidth=1, label=method)
    if (bound_s := table["lower_bound_s"].max()) > 0:
        axes.axhline(bound_s / unit_s, color="#111111", linewidth=1, label="lower bound")


def _figure(width_in: float, height_in: float) -> Figure:
    return new_figure(width_in, height_in, dpi=110, layout="constrained")


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="both", which="both", labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _finish(figure: Figure, legend_of: Axes, title: str, path: Path) -> None:
    """Put the title above and the legend below, so that they do not overlap."""
    handles, names = legend_of.get_legend_handles_labels()
    names = [legend_label(name) for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)
