"""Methods measured in turns: ratios of their times, with confidence intervals.

Shape suffixes: M methods, R rounds, N resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from doppler.graph.formats import write_atomically
from doppler.report.console_table import Column, print_table
from doppler.report.rows import format_seconds, read_csv, to_csv

PAIRED_FILE = "paired.csv"
_RESAMPLES = 5000


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Seconds of one method over those of another: medians over rounds in which both ran.

    Attributes:
        method: the first method.
        other: the other method.
        method_s: median seconds of the first method.
        other_s: median seconds of the other method.
        ratio: of the two.
        low: lower end of its 95% interval.
        high: upper end of its 95% interval.
        rounds: in which both ran.
        same: whether both have the same placement.
    """

    method: str
    other: str
    method_s: float
    other_s: float
    ratio: float
    low: float
    high: float
    rounds: int
    same: bool = False


def paired_ratios(
    methods: Sequence[str],
    seconds_MR: NDArray[np.float64],
    rng: np.random.Generator,
    same_M: Sequence[bool] = (),
) -> list[PairedRatio]:
    """Compare the first method with each other one.

    Args:
        methods: their names.
        seconds_MR: seconds of each method in each round.
        rng: draws the rounds.
        same_M: which methods have the placement of the first.

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
                same=bool(same_M and same_M[m]),
            )
        )
    return ratios


def write_paired(path: Path, ratios: Sequence[PairedRatio]) -> None:
    """Write paired.csv atomically.

    Args:
        path: of the file.
        ratios: its rows.
    """
    write_atomically(path, to_csv(PairedRatio, ratios))


def read_paired(path: Path) -> list[PairedRatio]:
    """Read what `write_paired` wrote.

    Args:
        path: of the file.
    """
    return read_csv(path, PairedRatio)


def print_paired(ratios: Sequence[PairedRatio], console: Console) -> None:
    """Print a table of ratios; below 1 the method is faster than the other.

    Args:
        ratios: its rows.
        console: where to print.
    """
    first = ratios[0]
    columns = [
        Column(name="method", cells=[one.other for one in ratios], is_number=False),
        Column(name="measured", cells=[format_seconds(one.other_s) for one in ratios]),
        Column(name="ratio", cells=["same" if one.same else f"{one.ratio:.3f}" for one in ratios]),
        Column(
            name="95% interval",
            cells=["-" if one.same else f"{one.low:.3f} to {one.high:.3f}" for one in ratios],
        ),
    ]
    print_table(
        console,
        f"{first.method}, {format_seconds(first.method_s)} measured, against",
        columns,
        note=(
            f"medians of {first.rounds} rounds, all methods in turns; 95% bootstrap intervals; "
            "same: the same placement"
        ),
        elsewhere=PAIRED_FILE,
    )


def paired_verdict(ratios: Sequence[PairedRatio]) -> str:
    """Say in one sentence which methods the first one is surely faster or slower than.

    Args:
        ratios: of the first method to the others.
    """
    kinds: dict[str, list[str]] = {
        "is faster than": [one.other for one in ratios if not one.same and one.high < 1.0],
        "is slower than": [one.other for one in ratios if not one.same and one.low > 1.0],
        "is level, within what the measurement can tell, with": [
            one.other for one in ratios if not one.same and one.low <= 1.0 <= one.high
        ],
        "is the same placement as": [one.other for one in ratios if one.same],
    }
    parts = [f"{words} {', '.join(names)}" for words, names in kinds.items() if names]
    first = ratios[0]
    return f"{first.method} ({format_seconds(first.method_s)}) {'; it '.join(parts)}."
