"""What a finished run leaves: one row per method, as a file."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doppler.graph.formats import write_atomically
from doppler.support.errors import InputError, printable
from doppler.support.files import read_text

RESULTS_FILE = "results.csv"
METRICS_FILE = "metrics.csv"  # of training
SUMMARY_FILE = "summary.json"  # written last: the run is finished
PLACEMENTS = "placements"  # a folder: <method>.json of every row
TRACES = "traces"  # a folder: <method>.json of methods to show beside the run's own trace.json

OF_GPUS = {"gpu_busy": "GPUs busy", "energy_j": "energy"}

Record = TypeVar("Record")
_READ: dict[Any, Callable[[str], Any]] = {
    **{str: str, int: int, float: float},
    bool: {"True": True, "False": False}.__getitem__,
}


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """What is reported of a method (evaluation protocol).

    variant: hash of the method's own settings. problem: hash of the problem. rules: how the system
    executes. Rows that differ in problem, rules or system_kind must not be held against each other.
    queue: how the system orders ready tasks. uses_order: whether the method chose the order itself.
    evaluations: executions used, those of inherited training included. wall_s: seconds of the
    search. makespan_s: nominal. jitter_mean_s, jitter_p95_s: over fresh draws of cost jitter.
    lower_bound_s: no placement can be faster; bound names which bound it is. gap: makespan over
    lower bound, less 1. source: what found the placement of a search that begins with several
    methods, as ``episode, annealing``; empty of others. placement: equal of rows that place alike;
    empty where nobody knows. doubt: why what was measured cannot be
    trusted (``measure.force``); empty where nothing is wrong. gpu_busy, energy_j: where GPUs
    execute, the mean share of the time in which they are busy, and what all take for one execution,
    in joules; NaN elsewhere. disagreements: of stage III, of how many placements that are surely
    slower or faster the simulator says the opposite, as ``2 of 7``; empty of others.
    """

    method: str
    variant: str
    workload: str
    problem: str
    cluster: str
    num_devices: int
    system: str
    system_kind: str
    rules: str
    queue: str
    uses_order: bool
    seed: int
    evaluations: int
    wall_s: float
    makespan_s: float
    jitter_mean_s: float
    jitter_p95_s: float
    lower_bound_s: float
    bound: str
    gap: float
    source: str = ""
    placement: str = ""
    doubt: str = ""
    gpu_busy: float = math.nan
    energy_j: float = math.nan
    disagreements: str = ""


def gap_over(bound_s: float, makespan_s: float) -> float:
    """Makespan over lower bound, less 1; sums of seconds agree to their last digits only."""
    if bound_s == 0.0:
        return 0.0 if makespan_s == 0.0 else float("inf")
    gap = makespan_s / bound_s - 1.0
    return 0.0 if abs(gap) < 1e-9 else gap


def write_results(path: str | Path, rows: Sequence[ResultRow]) -> None:
    """Write results.csv, atomically; columns of GPUs only where there are any."""
    write_atomically(path, to_csv(ResultRow, rows, without=untold(rows)))


def read_results(path: str | Path) -> list[ResultRow]:
    """Read what `write_results` wrote.

    Raises:
        InputError: no table of results, or a makespan that is none.
    """
    rows = read_csv(path, ResultRow)
    for row in rows:
        if not row.makespan_s >= 0.0:
            raise InputError(f"{path}: {row.method}: makespan_s {row.makespan_s}")
    return rows


def untold(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """The columns of GPUs of which no row knows anything."""
    return tuple(name for name in OF_GPUS if all(math.isnan(getattr(row, name)) for row in rows))


def to_csv(kind: type, records: Sequence[Any], *, without: Sequence[str] = ()) -> str:
    """Records of one dataclass as a line each, a column per field, full precision.

    Args:
        kind: the dataclass.
        records: of it.
        without: fields that are left out, which have defaults.
    """
    text = io.StringIO()
    names = [field.name for field in fields(kind) if field.name not in without]
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return text.getvalue()


def read_csv(path: str | Path, kind: type[Record]) -> list[Record]:
    """Read what `to_csv` wrote.

    Raises:
        InputError: no text, no line, a value is not of its field's type, or a column is missing of
            a field that has no default.
    """
    try:
        lines = list(csv.DictReader(io.StringIO(read_text(path))))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    if not lines:
        raise InputError(f"{path}: empty")
    columns: dict[str, Any] = {
        field.name: field.type
        for field in fields(kind)  # pyright: ignore[reportArgumentType]
        if field.name in lines[0] or field.default is MISSING
    }
    if missing := columns.keys() - lines[0].keys():
        names = ", ".join(sorted(missing))
        raise InputError(f"{path}: no column {names}; another version wrote it")
    records = []
    for number, line in enumerate(lines, 2):
        try:
            values = {name: _READ[type_](line[name]) for name, type_ in columns.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: line {number}: {error}") from None
        records.append(kind(**values))
    return records


def format_seconds(seconds: float) -> str:
    """Four digits in the unit that suits: 1.234 ms, 56.70 s."""
    scale, unit = next(
        (each for each in ((1.0, "s"), (1e-3, "ms")) if abs(seconds) >= each[0]), (1e-6, "us")
    )
    return f"{seconds / scale:.4g} {unit}"


def order_of(queue: str, uses_order: bool) -> str:
    """Whose order ready ops run in: the method's, the default one, or the system's."""
    if queue not in ("priority", "strict"):
        return queue
    return "own" if uses_order else "b_level"


def plain_table(
    title: str, words: Sequence[str], numbers: Sequence[str], *, note: str | None = None
) -> Table:
    """An empty rich table: columns of words at the left, of numbers at the right."""
    table = Table(
        title=Text(printable(title)),
        caption=None if note is None else Text(note),
        title_justify="left",
        caption_justify="left",
    )
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def make_console() -> Console:
    """The terminal; where output goes to a file or a pipe, wide enough for the table.

    It takes texts as they are: an op may be called ``[/b]`` or ``:smile:``.
    """
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, width=140)
