"""Methods measured in turns: how long one takes against each other one, and how sure that is.

Shape suffixes: M methods, R rounds, N resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from doppler.graph.formats import write_atomically
from doppler.report.rows import format_seconds, plain_table, read_csv, to_csv

PAIRED_FILE = "paired.csv"
_RESAMPLES = 5000


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Seconds of one method over those of another, medians over rounds in which both ran.

    low, high: 95% interval of the ratio.
    """

    method: str
    other: str
    method_s: float
    other_s: float
    ratio: float
    low: float
    high: float
    rounds: int


def paired_ratios(
    methods: Sequence[str], seconds_MR: NDArray[np.float64], rng: np.random.Generator
) -> list[PairedRatio]:
    """The first method against each other one.

    Source: Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, percentile intervals:
    rounds are drawn with replacement, both methods of a round together.
    """
    num_rounds = seconds_MR.shape[1]
    draw_NR = rng.integers(0, num_rounds, (_RESAMPLES, num_rounds))
    median_MN = np.stack([np.median(seconds_R[draw_NR], axis=1) for seconds_R in seconds_MR])
    median_M = np.median(seconds_MR, axis=1)
    ratios = []
    for m in range(1, len(methods)):
        low, high = np.quantile(median_MN[0] / median_MN[m], [0.025, 0.975])
        ratios.append(
            PairedRatio(
                method=methods[0],
                other=methods[m],
                method_s=float(median_M[0]),
                other_s=float(median_M[m]),
                ratio=float(median_M[0] / median_M[m]),
                low=float(low),
                high=float(high),
                rounds=num_rounds,
            )
        )
    return ratios


def write_paired(path: Path, ratios: Sequence[PairedRatio]) -> None:
    """Write paired.csv, atomically."""
    write_atomically(path, to_csv(PairedRatio, ratios))


def read_paired(path: Path) -> list[PairedRatio]:
    """Read what `write_paired` wrote."""
    return read_csv(path, PairedRatio)


def paired_table(ratios: Sequence[PairedRatio]) -> Table:
    """A rich table; a ratio below 1 means that the method is faster than the other."""
    first = ratios[0]
    table = plain_table(
        f"{first.method}, {format_seconds(first.method_s)} measured, against",
        ("method",),
        ("measured", "ratio", "95% interval"),
        note=f"medians of {first.rounds} rounds, all methods in turns; 95% bootstrap intervals",
    )
    for ratio in ratios:
        table.add_row(
            Text(ratio.other),
            format_seconds(ratio.other_s),
            f"{ratio.ratio:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
        )
    return table
