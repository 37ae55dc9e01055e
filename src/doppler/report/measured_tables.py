"""Tables that only real systems have: methods measured in turns, and how well simulation tells."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from doppler.report.fidelity import CORRELATIONS, format_correlation
from doppler.report.finished import FinishedRun
from doppler.report.paired import PAIRED_FILE, read_paired
from doppler.report.table import format_seconds
from doppler.report.tables import Table


def turns_tables(runs: Sequence[FinishedRun], labels: Mapping[str, str]) -> list[Table]:
    """Per problem, what one method takes over each other one, in rounds of one run each.

    labels: words for every problem hash.
    """
    groups: dict[str, dict[tuple[str, str], list]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        path = run.directory / PAIRED_FILE
        if path.exists():
            for ratio in read_paired(path):
                groups[run.rows[0].problem][ratio.method, ratio.other].append(ratio)
    tables = []
    for problem, pairs in groups.items():
        rows = [
            (
                f"{method} / {other}",
                str(len(ratios)),
                f"{np.mean([one.ratio for one in ratios]):.3f}",
                f"{min(one.low for one in ratios):.3f} to {max(one.high for one in ratios):.3f}",
                format_seconds(float(np.mean([one.method_s for one in ratios]))),
                format_seconds(float(np.mean([one.other_s for one in ratios]))),
            )
            for (method, other), ratios in pairs.items()
        ]
        tables.append(
            Table(
                title=f"Measured in turns: {labels[problem]}",
                note="below 1 the first is faster; mean over n seeds of medians over rounds in "
                "which both ran; the interval holds the 95% bootstrap intervals of all seeds",
                columns=("method", "n", "ratio", "95% intervals", "the first", "the second"),
                rows=tuple(rows),
            )
        )
    return tables


def fidelity_tables(runs: Sequence[FinishedRun]) -> list[Table]:
    """How simulated seconds compare to measured ones, by problem and cost model."""
    rows = [
        (
            *(_problem(run), label, str(run.summary["seed"]), str(one["placements"])),
            *(format_correlation(one.get(name)) for name in CORRELATIONS),
            *(f"{100 * one['mean_error']:.1f}%", f"{one['median_ratio']:.2f}"),
        )
        for run in runs
        for label, one in run.summary.get("fidelity", {}).items()
    ]
    if not rows:
        return []
    return [
        Table(
            title="Simulated against measured seconds",
            note="of placements of different quality, measured in rounds, changes of the machine's "
            "speed taken out; split-half: Spearman of the even rounds with the odd ones; error: "
            "mean |simulated - measured| / measured; ratio: median of simulated over measured",
            columns=(
                *("problem", "simulated with", "seed", "placements"),
                *(*CORRELATIONS.values(), "error", "ratio"),
            ),
            rows=tuple(rows),
        )
    ]


def _problem(run: FinishedRun) -> str:
    summary = run.summary
    return f"{summary['workload']} on {summary['cluster']}, {summary['num_devices']} devices"
