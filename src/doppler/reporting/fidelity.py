"""How well a simulation tells what is measured: correlations, errors, a picture.

Shape suffixes: B placements, R repeats.
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
# By their name in `Fidelity.figures`, the heading in tables.
CORRELATIONS = {"pearson": "Pearson", "spearman": "Spearman", "split_half": "split-half"}
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fidelity:
    """The same placements simulated, in seconds [B], and measured in rounds, in seconds [B, R].

    label: which simulation it is.
    """

    label: str
    simulated_s: NDArray[np.float64]
    rounds_s: NDArray[np.float64]

    @property
    def measured_s(self) -> NDArray[np.float64]:
        """The median over rounds, in seconds [B]."""
        return np.median(self.rounds_s, axis=1)

    @property
    def pearson(self) -> float:
        """Linear correlation."""
        return float(np.corrcoef(self.simulated_s, self.measured_s)[0, 1])

    @property
    def spearman(self) -> float:
        """Correlation of the ranks."""
        return _rank_correlation(self.simulated_s, self.measured_s)

    @property
    def split_half(self) -> float | None:
        """How well measurement ranks the placements: the even rounds' medians with the odd ones'.

        Of r here, even a perfect simulation can be expected to reach no `spearman` above
        sqrt(2 r / (1 + r)) (Spearman-Brown, attenuation). None of a single round.
        """
        if self.rounds_s.shape[1] < 2:
            return None
        even_B, odd_B = (np.median(self.rounds_s[:, i::2], axis=1) for i in (0, 1))
        return _rank_correlation(even_B, odd_B)

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
            "split_half": self.split_half,
            "mean_error": self.mean_error,
            "median_ratio": self.ratio,
        }


def _rank_correlation(one_B: NDArray[np.float64], other_B: NDArray[np.float64]) -> float:
    return float(np.corrcoef(rankdata(one_B), rankdata(other_B))[0, 1])


def format_correlation(correlation: float | None) -> str:
    """Three digits; a dash where there is none."""
    return "-" if correlation is None else f"{correlation:.3f}"


def fidelity_table(title: str, figures: dict[str, dict[str, Any]]) -> Table:
    """A rich table: `Fidelity.figures` by label."""
    table = Table(title=title, title_justify="left")
    table.add_column("simulated with")
    for name in ("placements", *CORRELATIONS.values(), "mean error", "simulated / measured"):
        table.add_column(name, justify="right")
    for label, one in figures.items():
        table.add_row(
            label,
            str(one["placements"]),
            *(format_correlation(one[name]) for name in CORRELATIONS),
            f"{100 * one['mean_error']:.1f}%",
            f"{one['median_ratio']:.2f}",
        )
    return table


def write_fidelity(directory: Path, compared: Sequence[Fidelity], group_B: Sequence[str]) -> None:
    """Write fidelity.csv, a row per placement, and fidelity.png, simulated over measured.

    compared: simulations of the same placements against the same measurements. group_B: where each
    placement comes from.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured_B, spread_B = compared[0].measured_s, compared[0].rounds_s.std(axis=1)
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
