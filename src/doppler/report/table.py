"""The table at the end of a run."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doppler.report.report import SummaryRow
from doppler.report.rows import ResultRow


def format_seconds(seconds: float) -> str:
    """Four digits in the unit that suits: 1.234 ms, 56.70 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale or unit == "us":
            return f"{seconds / scale:.4g} {unit}"
    raise AssertionError("unreachable")


def results_table(rows: Sequence[ResultRow]) -> Table:
    """A rich table of one run's methods, the best makespan in bold."""
    first = rows[0]
    measured = first.system_kind == "measured"
    bound = f"lower bound {format_seconds(first.lower_bound_s)} ({first.bound}); "
    table = Table(
        title=f"{first.workload} on {first.cluster} ({first.num_devices} devices), "
        f"{first.system_kind} by {first.system}, queue {first.queue}, seed {first.seed}",
        caption="makespan: median over executions in turns"
        if measured
        else bound + "jitter: 5% lognormal on every op and transfer",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("method", "order"):
        table.add_column(name)
    spread = ("mean", "p95") if measured else ("jitter mean", "jitter p95")
    for name in ("makespan", "gap", *spread, "evaluations", "seconds"):
        table.add_column(name, justify="right")
    best = min(row.makespan_s for row in rows)
    for row in rows:
        style = "bold" if row.makespan_s <= best * (1 + 1e-9) else ""
        table.add_row(
            row.method,
            order_of(row),
            Text(format_seconds(row.makespan_s), style),
            f"{100 * row.gap:.1f}%" if math.isfinite(row.gap) else "-",
            format_seconds(row.jitter_mean_s),
            format_seconds(row.jitter_p95_s),
            f"{row.evaluations:,}",
            f"{row.wall_s:.1f}",
        )
    return table


def order_of(row: ResultRow | SummaryRow) -> str:
    """Whose order ready ops run in: the method's, the default one, or the system's."""
    if row.queue not in ("priority", "strict"):
        return row.queue
    return "own" if row.uses_order else "b_level"


def make_console() -> Console:
    """The terminal; where output goes to a file or a pipe, wide enough for the table."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def print_results(rows: Sequence[ResultRow], console: Console) -> None:
    """Print the table of a run."""
    console.print(results_table(rows))
