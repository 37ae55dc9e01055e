"""How well a simulation tells what is measured: correlations, errors, a picture.

Shape suffix: B placements.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import rankdata

from doppler.graph.formats import write_atomically

FIDELITY_FILE = "fidelity.csv"
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fidelity:
    """The same placements simulated and measured, in seconds [B].

    label: which simulation it is. mean_error: of simulated against measured seconds, relative.
    ratio: the median of simulated over measured.
    """

    label: str
    simulated_s: NDArray[np.float64]
    measured_s: NDArray[np.float64]

    @property
    def pearson(self) -> float:
        """Linear correlation."""
        return float(np.corrcoef(self.simulated_s, self.measured_s)[0, 1])

    @property
    def spearman(self) -> float:
        """Correlation of the ranks."""
        return float(np.corrcoef(rankdata(self.simulated_s), rankdata(self.measured_s))[0, 1])

    @property
    def mean_error(self) -> float:
        """Mean over placements of |simulated - measured| / measured."""
        return float(np.mean(np.abs(self.simulated_s / self.measured_s - 1.0)))

    @property
    def ratio(self) -> float:
        """Median over placements of simulated / measured."""
        return float(np.median(self.simulated_s / self.measured_s))

    def figures(self) -> dict[str, Any]:
        """What a summary says of it."""
        return {
            "placements": len(self.measured_s),
            "pearson": self.pearson,
            "spearman": self.spearman,
            "mean_error": self.mean_error,
            "median_ratio": self.ratio,
        }


def fidelity_table(title: str, figures: dict[str, dict[str, Any]]) -> Table:
    """A rich table: `Fidelity.figures` by label."""
    table = Table(title=title, title_justify="left")
    table.add_column("simulated with")
    for name in ("placements", "Pearson", "Spearman", "mean error", "simulated / measured"):
        table.add_column(name, justify="right")
    for label, one in figures.items():
        table.add_row(
            label,
            str(one["placements"]),
            f"{one['pearson']:.3f}",
            f"{one['spearman']:.3f}",
            f"{100 * one['mean_error']:.1f}%",
            f"{one['median_ratio']:.2f}",
        )
    return table


def write_fidelity(
    directory: Path, compared: Sequence[Fidelity], group_B: Sequence[str], spread_B: NDArray
) -> None:
    """Write fidelity.csv, a row per placement, and fidelity.png, simulated over measured.

    compared: simulations of the same placements against the same measurements. group_B: where each
    placement comes from. spread_B: standard deviation of its measurements, in seconds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured_B = compared[0].measured_s
    writer.writerow(["placement", "measured_s", "measured_std_s", *(one.label for one in compared)])
    for b, group in enumerate(group_B):
        row = [measured_B[b], spread_B[b], *(one.simulated_s[b] for one in compared)]
        writer.writerow([group, *(f"{seconds:.9g}" for seconds in row)])
    write_atomically(directory / FIDELITY_FILE, text.getvalue())
    _draw(directory / "fidelity.png", compared, list(group_B))


def _draw(path: Path, compared: Sequence[Fidelity], groups: list[str]) -> None:
    figure = Figure(figsize=(5.2 * len(compared), 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(groups))
    for column, one in enumerate(compared):
        axes = figure.add_subplot(1, len(compared), column + 1)
        for i, name in enumerate(names):
            chosen = [b for b, group in enumerate(groups) if group == name]
            axes.scatter(
                1e3 * one.measured_s[chosen],
                1e3 * one.simulated_s[chosen],
                s=16,
                color=_COLOURS[i % len(_COLOURS)],
                label=name,
            )
        largest_ms = 1.05e3 * float(max(one.measured_s.max(), one.simulated_s.max()))
        axes.plot([0, largest_ms], [0, largest_ms], color="#9aa3ad", linewidth=1, zorder=0)
        axes.set(
            xlim=(0, largest_ms),
            ylim=(0, largest_ms),
            xlabel="measured, ms",
            ylabel="simulated, ms",
            title=f"{one.label}: Spearman {one.spearman:.2f}, error {100 * one.mean_error:.0f}%",
        )
        axes.legend(fontsize="small")
    figure.savefig(path)
