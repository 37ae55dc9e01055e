"""What more evaluations bring: makespans over evaluations, one line for each method."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from doppler.report.curves import COLOURS
from doppler.report.report import SummaryRow
from doppler.trace.explain import time_unit


def save_effort(table: Sequence[SummaryRow], path: Path, *, title: str) -> bool:
    """Draw the averaged rows of one problem and system; False where no method has had two budgets.

    Bars are the standard deviation over seeds. Rows of one training (``doppler trained``) and
    methods of one budget, or of several settings with one, are left out.
    """
    rows_of: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in sorted(table, key=lambda row: row.evaluations):
        rows_of[row.method].append(row)
    drawn = {
        method: rows
        for method, rows in rows_of.items()
        if len({row.evaluations for row in rows}) == len(rows) > 1 and " " not in method
    }
    if not drawn:
        return False
    unit_s, symbol = time_unit(min(row.makespan_s for rows in drawn.values() for row in rows))
    figure = Figure(figsize=(9, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, (method, rows) in enumerate(drawn.items()):
        axes.errorbar(
            [row.evaluations for row in rows],
            [row.makespan_s / unit_s for row in rows],
            yerr=[row.spread_s / unit_s for row in rows],
            color=COLOURS[i % len(COLOURS)],
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.6,
            label=f"{method} (n={min(row.seeds for row in rows)})",
        )
    bound = table[0].lower_bound_s / unit_s
    axes.axhline(bound, color="#111111", linewidth=1, label="lower bound")
    axes.set_xscale("log")
    axes.set_xlabel("evaluations")
    axes.set_ylabel(f"makespan ({symbol})")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True
