"""Rows of many runs, averaged over seeds."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from doppler.errors import InputError
from doppler.report.finished import find_runs
from doppler.report.rows import ResultRow, gap_over


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One method on one problem and system, over n seeds; spread is the standard deviation.

    Only rows that agree in all columns before ``method`` may be held against each other. They share
    the largest lower bound that any of their runs knew; bound names it.
    """

    system_kind: str
    system: str
    rules: str
    queue: str
    workload: str
    cluster: str
    num_devices: int
    problem: str
    method: str
    variant: str
    uses_order: bool
    evaluations: int
    seeds: int
    makespan_s: float
    spread_s: float
    jitter_mean_s: float
    jitter_p95_s: float
    lower_bound_s: float
    bound: str
    gap: float
    wall_s: float


def collect(folders: Iterable[Path]) -> list[ResultRow]:
    """All result rows below the given folders.

    Raises:
        InputError: a folder that does not exist, or no finished run in any of them.
    """
    return [row for run in find_runs(folders) for row in run.rows]


_COLUMNS = [field.name for field in fields(SummaryRow)]
# What one averaged row has in common, over seeds.
_SAME = _COLUMNS[: _COLUMNS.index("seeds")]
# What rows have in common that may be held against each other.
_COMPARABLE = _COLUMNS[: _COLUMNS.index("method")]


def summarise(rows: Sequence[ResultRow]) -> list[SummaryRow]:
    """Average over seeds; a seed that occurs in several runs counts once.

    Raises:
        InputError: two runs of one seed disagree, which measured ones may.
    """
    groups: dict[tuple, dict[int, ResultRow]] = defaultdict(dict)
    tightest: dict[tuple, ResultRow] = {}
    for row in rows:
        known_bound = tightest.setdefault(_values(row, _COMPARABLE), row)
        if row.lower_bound_s > known_bound.lower_bound_s:
            tightest[_values(row, _COMPARABLE)] = row
        seeds = groups[_values(row, _SAME)]
        known = seeds.setdefault(row.seed, row)
        if known.makespan_s != row.makespan_s and row.system_kind == "simulated":
            raise InputError(
                f"{row.method} on {row.workload}, seed {row.seed}: two runs of the same settings "
                f"give {known.makespan_s:g} s and {row.makespan_s:g} s"
            )
    table = [
        _average(list(seeds.values()), tightest[same[: len(_COMPARABLE)]])
        for same, seeds in groups.items()
    ]
    return sorted(table, key=lambda row: (*_values(row, _COMPARABLE), row.makespan_s))


def _values(row: ResultRow | SummaryRow, columns: Sequence[str]) -> tuple:
    return tuple(getattr(row, column) for column in columns)


def _average(rows: Sequence[ResultRow], tightest: ResultRow) -> SummaryRow:
    """Average over seeds, with the bound of ``tightest``."""

    def mean(column: str) -> float:
        return float(np.mean([getattr(row, column) for row in rows]))

    first = rows[0]
    makespans = [row.makespan_s for row in rows]
    return SummaryRow(
        **{column: getattr(first, column) for column in _SAME},
        seeds=len(rows),
        makespan_s=mean("makespan_s"),
        spread_s=float(np.std(makespans, ddof=1)) if len(makespans) > 1 else 0.0,
        jitter_mean_s=mean("jitter_mean_s"),
        jitter_p95_s=mean("jitter_p95_s"),
        lower_bound_s=tightest.lower_bound_s,
        bound=tightest.bound,
        gap=gap_over(tightest.lower_bound_s, mean("makespan_s")),
        wall_s=mean("wall_s"),
    )
