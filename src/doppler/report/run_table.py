"""Prints the table of one run: its methods, what found their placements, and a summary sentence."""

import math
from collections.abc import Sequence

from rich.console import Console

from doppler.report.console_table import Column, print_table
from doppler.report.rows import (
    OF_GPUS,
    RESULTS_FILE,
    ResultRow,
    format_seconds,
    order_of,
    untold,
)
from doppler.report.sources import SOURCES_NOTE, found_by

# Sums in another order differ in their last digits.
_LEVEL = 1e-9
# Appended to the names of rows that cannot be trusted.
DOUBT = " (!)"


def print_results(rows: Sequence[ResultRow], console: Console) -> None:
    """Print the table of a run; if it was simulated, also one sentence that sums it up.

    Args:
        rows: of the run, the main method first.
        console: where to print.
    """
    first = rows[0]
    measured = first.system_kind == "measured"
    title = (
        f"{first.workload} on {first.cluster} ({first.num_devices} devices), "
        f"{first.system_kind} by {first.system}, queue {first.queue}, seed {first.seed}"
    )
    bound = f"lower bound {format_seconds(first.lower_bound_s)} ({first.bound}); "
    note = "makespan: median over executions in turns"
    if not measured:
        note = bound + "jitter: 5% lognormal on every op and transfer"
    print_table(
        console,
        title,
        _columns(rows, measured=measured),
        note=f"{note}; {SOURCES_NOTE}",
        elsewhere=RESULTS_FILE,
    )
    for line in (*_doubts(rows), *([] if measured else [run_verdict(rows)])):
        console.print(line, highlight=False, markup=False)


def _columns(rows: Sequence[ResultRow], *, measured: bool) -> list[Column]:
    best_s = min(row.makespan_s for row in rows)
    mean, p95 = ("mean", "p95") if measured else ("jitter mean", "jitter p95")
    columns = [
        Column(
            name="method",
            cells=[row.method + (DOUBT if row.doubt else "") for row in rows],
            is_number=False,
        ),
        Column(name="found by", cells=sources_or_twins(rows), is_number=False),
        Column(
            name="order",
            cells=[order_of(row.queue, row.uses_order) for row in rows],
            is_number=False,
            rank=5,
        ),
        Column(
            name="makespan",
            cells=[format_seconds(row.makespan_s) for row in rows],
            is_bold=[row.makespan_s <= best_s * (1.0 + _LEVEL) for row in rows],
        ),
    ]
    if not measured:  # real systems have no known bound
        gaps = [f"{100 * row.gap:.1f}%" if math.isfinite(row.gap) else "-" for row in rows]
        columns.append(Column(name="gap", cells=gaps))
    return [
        *columns,
        Column(name=mean, cells=[format_seconds(row.jitter_mean_s) for row in rows], rank=3),
        Column(name=p95, cells=[format_seconds(row.jitter_p95_s) for row in rows], rank=4),
        Column(name="evaluations", cells=[f"{row.evaluations:,}" for row in rows], rank=1),
        Column(name="seconds", cells=[f"{row.wall_s:.1f}" for row in rows], rank=2),
        *(
            Column(name=title, cells=[_of_gpu(name, getattr(row, name)) for row in rows], rank=6)
            for name, title in OF_GPUS.items()
            if name not in untold(rows)
        ),
    ]


def _of_gpu(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.0%}" if name == "gpu_busy" else f"{value:.3g} J"


def sources_or_twins(rows: Sequence[ResultRow]) -> list[str]:
    """Say what found each placement, or which earlier row has the same one.

    Args:
        rows: of the run.
    """
    first_of: dict[str, str] = {}
    texts = []
    for row in rows:
        twin = first_of.get(row.placement) if row.placement else None
        texts.append(found_by(row.source) if twin is None else f"same placement as {twin}")
        first_of.setdefault(row.placement, row.method)
    return texts


def _doubts(rows: Sequence[ResultRow]) -> list[str]:
    doubts = ", ".join(dict.fromkeys(row.doubt for row in rows if row.doubt))
    return [f"(!) do not trust these rows: {doubts}"] if doubts else []


def run_verdict(rows: Sequence[ResultRow]) -> str:
    """Say in one sentence what is best, by how much, and what the search after training added.

    Args:
        rows: of one run, the main method first.
    """
    own = [row for row in rows if is_own(row, rows[0])]
    others = [row for row in rows if not is_own(row, rows[0])]
    method = rows[0]
    if not others:
        said = f"{method.method} takes {format_seconds(method.makespan_s)}; no other method ran"
    else:
        said = _against(method, min(others, key=lambda row: row.makespan_s))
    learned = [
        row
        for row in own[1:]
        if row.method in _without_search(method) and row.evaluations < method.evaluations
    ]
    if learned:
        alone = min(learned, key=lambda row: row.makespan_s)
        said += (
            f"; without the search after its training {method.method} has {_more(alone, method)}"
        )
    return f"{said}."


def is_own(row: ResultRow, first: ResultRow) -> bool:
    """Whether a row belongs to the run's main method, as ``doppler greedy`` to ``doppler``.

    Args:
        row: to test.
        first: row of the main method.
    """
    return row.method == first.method or row.method.startswith(f"{first.method} ")


def _without_search(method: ResultRow) -> list[str]:
    return [f"{method.method} trained", f"{method.method} greedy"]


def _against(method: ResultRow, other: ResultRow) -> str:
    ours, theirs = format_seconds(method.makespan_s), format_seconds(other.makespan_s)
    if method.placement and method.placement == other.placement:
        return f"{method.method} and {other.method} found the same placement ({ours})"
    ratio = other.makespan_s / method.makespan_s if method.makespan_s > 0 else 1.0
    if abs(ratio - 1.0) <= _LEVEL:
        return f"{method.method} and {other.method} are level ({ours})"
    if ratio > 1.0:
        return (
            f"{method.method} is best ({ours}); the best other method, {other.method}, takes "
            f"{_percent(ratio)} longer ({theirs})"
        )
    return (
        f"{other.method} is best ({theirs}); {method.method} takes {_percent(1.0 / ratio)} longer "
        f"({ours})"
    )


def _more(row: ResultRow, method: ResultRow) -> str:
    seconds = f"{format_seconds(row.makespan_s)} (found by {found_by(row.source)})"
    if row.placement and row.placement == method.placement:
        return "the same placement: the search added nothing"
    if method.makespan_s <= 0 or row.makespan_s <= method.makespan_s * (1.0 + _LEVEL):
        return f"{seconds}: the search added nothing"
    return f"{seconds}, {_percent(row.makespan_s / method.makespan_s)} longer"


def _percent(ratio: float) -> str:
    share = 100.0 * (ratio - 1.0)
    return f"{share:.1f}%" if share >= 0.1 else "less than 0.1%"
