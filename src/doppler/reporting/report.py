"""Tables over many runs: rows of results.csv files, averaged over seeds."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from doppler.errors import InputError
from doppler.reporting.rows import RESULTS_FILE, ResultRow, read_results


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One method on one problem and system, over n seeds; spread is the standard deviation.

    The columns before ``seeds`` say what is comparable: only rows that agree in all of them but
    the method may be held against each other.
    """

    system_kind: str
    system: str
    queue: str
    workload: str
    cluster: str
    num_devices: int
    method: str
    uses_order: bool
    seeds: int
    evaluations: int
    makespan_s: float
    spread_s: float
    jitter_mean_s: float
    jitter_p95_s: float
    lower_bound_s: float
    gap: float
    wall_s: float


def collect(folders: Iterable[Path]) -> list[ResultRow]:
    """All result rows below the given folders.

    Raises:
        InputError: a folder that does not exist, or no finished run in any of them.
    """
    rows: list[ResultRow] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such directory")
        for path in sorted(folder.rglob(RESULTS_FILE)):
            rows.extend(read_results(path))
    if not rows:
        raise InputError("no finished run (results.csv) in the given directories")
    return rows


def summarise(rows: Sequence[ResultRow]) -> list[SummaryRow]:
    """Average over seeds; a seed that occurs in several runs with equal results counts once."""
    groups: dict[tuple, dict[tuple, ResultRow]] = defaultdict(dict)
    for row in rows:
        group = (
            *(row.system_kind, row.system, row.queue, row.workload, row.cluster, row.num_devices),
            *(row.method, row.uses_order, row.evaluations),
        )
        groups[group][(row.seed, row.makespan_s)] = row
    table = [_average(list(group.values())) for group in groups.values()]
    return sorted(
        table,
        key=lambda row: (
            *(row.system_kind, row.system, row.queue, row.workload, row.cluster),
            *(row.num_devices, row.makespan_s),
        ),
    )


def _average(rows: Sequence[ResultRow]) -> SummaryRow:
    def mean(column: str) -> float:
        return float(np.mean([getattr(row, column) for row in rows]))

    first = rows[0]
    makespans = [row.makespan_s for row in rows]
    return SummaryRow(
        system_kind=first.system_kind,
        system=first.system,
        queue=first.queue,
        workload=first.workload,
        cluster=first.cluster,
        num_devices=first.num_devices,
        method=first.method,
        uses_order=first.uses_order,
        seeds=len(rows),
        evaluations=first.evaluations,
        makespan_s=mean("makespan_s"),
        spread_s=float(np.std(makespans, ddof=1)) if len(makespans) > 1 else 0.0,
        jitter_mean_s=mean("jitter_mean_s"),
        jitter_p95_s=mean("jitter_p95_s"),
        lower_bound_s=mean("lower_bound_s"),
        gap=mean("gap"),
        wall_s=mean("wall_s"),
    )


def _text(row: SummaryRow) -> list[str]:
    return [
        f"{value:.6g}" if isinstance(value, float) else str(value) for value in asdict(row).values()
    ]


_COLUMNS = [field.name for field in fields(SummaryRow)]


def to_csv(table: Sequence[SummaryRow]) -> str:
    """Comma-separated, full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in table)
    return text.getvalue()


def to_markdown(table: Sequence[SummaryRow]) -> str:
    """A markdown table."""
    lines = [" | ".join(_COLUMNS), " | ".join("---" for _ in _COLUMNS)]
    lines += [" | ".join(_text(row)) for row in table]
    return "".join(f"| {line} |\n" for line in lines)


def to_latex(table: Sequence[SummaryRow]) -> str:
    """A LaTeX tabular."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.replace("_", r"\_") for cell in cells) + r" \\" + "\n"

    return (
        r"\begin{tabular}{"
        + "l" * len(_COLUMNS)
        + "}\n\\hline\n"
        + line(_COLUMNS)
        + "\\hline\n"
        + "".join(line(_text(row)) for row in table)
        + "\\hline\n\\end{tabular}\n"
    )
