"""How well a simulation predicts measurements: correlations, errors, a figure.

Shape suffixes: B placements, R repeats.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import rankdata

from doppler.graph.formats import write_atomically
from doppler.report.console_table import Column, print_table
from doppler.trace.pictures import legend_label, new_figure, save_figure

FIDELITY_FILE = "fidelity.csv"
# Headings in tables, by names in `Fidelity.figures`.
CORRELATIONS = {"pearson": "Pearson", "spearman": "Spearman", "split_half": "split-half"}
# Executions before and after one from which the machine's speed is estimated.
_NEIGHBOURS = 5
# Spearman correlations from which a simulator ranks placements well, and roughly.
_GOOD, _POOR = 0.8, 0.5
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fidelity:
    """The same placements, simulated and measured.

    Attributes:
        label: of the simulation.
        simulated_s: seconds [B].
        rounds_s: measured seconds [B, R] in each round.
        order: order of execution in each round, as indices of placements [R, B].
    """

    label: str
    simulated_s: NDArray[np.float64]
    rounds_s: NDArray[np.float64]
    order: NDArray[np.int64]

    @property
    def measured_s(self) -> NDArray[np.float64]:
        """Seconds [B]: the median over rounds, corrected for changes of the machine's speed."""
        return _typical(self.rounds_s, self.order)

    @property
    def pearson(self) -> float:
        """Linear correlation."""
        return float(np.corrcoef(self.simulated_s, self.measured_s)[0, 1])

    @property
    def spearman(self) -> float:
        """Rank correlation."""
        return _rank_correlation(self.simulated_s, self.measured_s)

    @property
    def split_half(self) -> float | None:
        """Rank correlation of the even rounds with the odd ones; None if there is one round.

        With this value r, even a perfect simulation is expected to reach a `spearman` of at most
        sqrt(2 r / (1 + r)) (Spearman-Brown formula and attenuation).
        """
        return split_half(self.rounds_s, self.order)

    @property
    def mean_error(self) -> float:
        """Mean over placements of abs(simulated - measured) / measured."""
        return float(np.mean(np.abs(self.simulated_s / self.measured_s - 1.0)))

    @property
    def ratio(self) -> float:
        """Median over placements of simulated / measured."""
        return float(np.median(self.simulated_s / self.measured_s))

    def figures(self) -> dict[str, Any]:
        """Return the figures for a summary."""
        return {
            "placements": len(self.measured_s),
            "pearson": self.pearson,
            "spearman": self.spearman,
            "split_half": self.split_half,
            "mean_error": self.mean_error,
            "median_ratio": self.ratio,
        }


def split_half(rounds_BR: NDArray[np.float64], order_RB: NDArray[np.int64]) -> float | None:
    """Return the rank correlation of two halves of a measurement.

    Args:
        rounds_BR: seconds of each placement in each round.
        order_RB: order of execution in each round, as indices of placements.

    Returns:
        1 if the even and the odd rounds agree, about 0 if noise decides; None if there is one
        round.
    """
    if rounds_BR.shape[1] < 2:
        return None
    even_B, odd_B = (_typical(rounds_BR[:, i::2], order_RB[i::2]) for i in (0, 1))
    return _rank_correlation(even_B, odd_B)


def fidelity_verdict(figures: Mapping[str, Any]) -> str:
    """Say in one sentence whether the simulator ranks placements as the machine does.

    Args:
        figures: `Fidelity.figures` of the simulation with measured costs.
    """
    spearman, halves = figures["spearman"], figures["split_half"]
    told = f"rank correlation {spearman:.2f}"
    if halves is not None and halves > 0.0:
        # Spearman-Brown: because measurements are noisy, no simulation can do better than this.
        told += f", at most {(2.0 * halves / (1.0 + halves)) ** 0.5:.2f} with this noise"
    if spearman >= _GOOD:
        return f"The simulator ranks placements as this machine does ({told})."
    if spearman >= _POOR:
        return f"The simulator ranks placements roughly as this machine does ({told})."
    return (
        f"The simulator does not rank placements as this machine does ({told}): what is found in "
        "it may not be good here."
    )


def _typical(rounds_BR: NDArray[np.float64], order_RB: NDArray[np.int64]) -> NDArray[np.float64]:
    """Medians over rounds [B] of seconds, corrected to the machine's usual speed.

    The speed at one execution is estimated from those around it: the median of their seconds, each
    divided by the median of its own placement. On shared machines the speed varies by 10% and more
    within seconds, which would swap the ranks of similar placements.
    """
    slowness_BR = rounds_BR / np.median(rounds_BR, axis=1, keepdims=True)
    slowness_N = np.take_along_axis(slowness_BR.T, order_RB, axis=1).ravel()
    around_N = np.empty_like(slowness_N)
    for i in range(len(slowness_N)):
        before, after = slowness_N[max(0, i - _NEIGHBOURS) : i], slowness_N[i + 1 :][:_NEIGHBOURS]
        around_N[i] = np.median(np.concatenate([before, after]))
    around_RB = np.empty_like(rounds_BR.T)
    np.put_along_axis(around_RB, order_RB, around_N.reshape(order_RB.shape), axis=1)
    return np.median(rounds_BR / around_RB.T, axis=1)


def _rank_correlation(one_B: NDArray[np.float64], other_B: NDArray[np.float64]) -> float:
    return float(np.corrcoef(rankdata(one_B), rankdata(other_B))[0, 1])


def format_correlation(correlation: float | None) -> str:
    """Write a correlation with three digits, or a dash for None.

    Args:
        correlation: to write.
    """
    return "-" if correlation is None else f"{correlation:.3f}"


def print_fidelity(title: str, figures: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print a table of `Fidelity.figures`.

    Args:
        title: above the table.
        figures: by label.
        console: where to print.
    """
    rows = list(figures.values())
    ranks = {"pearson": 4, "spearman": 0, "split_half": 0}
    columns = [
        Column(name="simulated with", cells=list(figures), is_number=False),
        Column(name="placements", cells=[str(one["placements"]) for one in rows], rank=3),
        *(
            Column(name=word, cells=[format_correlation(one[key]) for one in rows], rank=ranks[key])
            for key, word in CORRELATIONS.items()
        ),
        Column(name="mean error", cells=[f"{100 * one['mean_error']:.1f}%" for one in rows]),
        Column(
            name="simulated / measured",
            cells=[f"{one['median_ratio']:.2f}" for one in rows],
            rank=2,
        ),
    ]
    print_table(console, title, columns, elsewhere="summary.json")


def write_fidelity(directory: Path, compared: Sequence[Fidelity], group_B: Sequence[str]) -> None:
    """Write fidelity.csv, a row per placement, and fidelity.png, simulated over measured seconds.

    The columns measured_median_s and measured_std_s are not corrected for the machine's speed.

    Args:
        directory: of the files.
        compared: simulations of the same placements, with the same measurements.
        group_B: the source of each placement.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured_B, spread_B = compared[0].measured_s, compared[0].rounds_s.std(axis=1)
    median_B = np.median(compared[0].rounds_s, axis=1)
    head = ("placement", "measured_s", "measured_median_s", "measured_std_s")
    writer.writerow([*head, *(one.label for one in compared)])
    for b, group in enumerate(group_B):
        row = [measured_B[b], median_B[b], spread_B[b], *(one.simulated_s[b] for one in compared)]
        writer.writerow([group, *(f"{seconds:.9g}" for seconds in row)])
    write_atomically(directory / FIDELITY_FILE, text.getvalue())
    _draw(directory / "fidelity.png", compared, list(group_B))


def _draw(path: Path, compared: Sequence[Fidelity], groups: list[str]) -> None:
    figure = new_figure(5.2 * len(compared), 4.8, dpi=110, layout="constrained")
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
                label=legend_label(name),
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
    save_figure(figure, path)
