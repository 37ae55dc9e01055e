"""The result rows of a run, one per method, and their files."""

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
CONFIG_FILE = ".hydra/config.yaml"  # written when the run begins
SUMMARY_FILE = "summary.json"  # written last: the run is finished
PLACEMENTS = "placements"  # a folder: <method>.json of every row
TRACES = "traces"  # a folder: <method>.json of methods to compare with the run's own trace.json

OF_GPUS = {"gpu_busy": "GPUs busy", "energy_j": "energy"}

Record = TypeVar("Record")
_READ: dict[Any, Callable[[str], Any]] = {
    **{str: str, int: int, float: float},
    bool: {"True": True, "False": False}.__getitem__,
}


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """The results of one method on one problem, system and seed.

    Rows that differ in problem, rules or system_kind must not be compared.

    Attributes:
        method: its name.
        variant: hash of the method's own settings.
        workload: name of the graph.
        problem: hash of the problem.
        cluster: name of the machine.
        num_devices: of the machine.
        system: name of the system.
        system_kind: simulated or measured.
        rules: how the system executes.
        queue: how the system orders ready tasks.
        uses_order: whether the method chose the order itself.
        seed: of the run.
        evaluations: executions used, including those of inherited training.
        wall_s: seconds of the search.
        makespan_s: without jitter; median if measured.
        jitter_mean_s: mean over fresh draws of cost jitter.
        jitter_p95_s: 95th percentile over these draws.
        lower_bound_s: no placement can be faster.
        bound: which lower bound it is.
        gap: makespan over lower bound, minus 1.
        source: if a search begins with several methods, the steps that found its placement, such as
            ``episode, annealing``; else empty.
        placement: identifies the placement: equal in rows with equal placements, empty if unknown.
        doubt: why measurements cannot be trusted (``measure.force``); empty if they can.
        gpu_busy: mean share of the time in which GPUs are busy; NaN without GPUs.
        energy_j: joules of all GPUs for one execution; NaN without GPUs.
        disagreements: of stage III, how many placements that are surely slower or faster the
            simulator ranks the other way, as ``2 of 7``; else empty.
        budget: executions that were allowed, where their number depends on what was measured; 0:
            the same as ``evaluations``. Seeds with one budget are averaged.
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
    budget: int = 0

    @property
    def allowed(self) -> int:
        """Executions that the method was allowed."""
        return self.budget or self.evaluations


def gap_over(bound_s: float, makespan_s: float) -> float:
    """Return makespan over lower bound, minus 1; differences by rounding count as 0.

    Args:
        bound_s: lower bound.
        makespan_s: makespan.
    """
    if bound_s == 0.0:
        return 0.0 if makespan_s == 0.0 else float("inf")
    gap = makespan_s / bound_s - 1.0
    return 0.0 if abs(gap) < 1e-9 else gap


def write_results(path: str | Path, rows: Sequence[ResultRow]) -> None:
    """Write results.csv atomically; columns of GPUs only if there are values.

    Args:
        path: of the file.
        rows: to write.
    """
    write_atomically(path, to_csv(ResultRow, rows, without=untold(rows)))


def read_results(path: str | Path) -> list[ResultRow]:
    """Read what `write_results` wrote.

    Args:
        path: of the file.

    Raises:
        InputError: not a table of results, or a makespan is not valid.
    """
    rows = read_csv(path, ResultRow)
    for row in rows:
        if not row.makespan_s >= 0.0:
            raise InputError(f"{path}: {row.method}: makespan_s {row.makespan_s}")
    return rows


def untold(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Return the columns of GPUs that have no value in any row.

    Args:
        rows: to look at.
    """
    return tuple(name for name in OF_GPUS if all(math.isnan(getattr(row, name)) for row in rows))


def to_csv(kind: type, records: Sequence[Any], *, without: Sequence[str] = ()) -> str:
    """Write records of one dataclass as CSV, a column per field, with full precision.

    Args:
        kind: the dataclass.
        records: its instances.
        without: fields that are left out; they must have defaults.
    """
    text = io.StringIO()
    names = [field.name for field in fields(kind) if field.name not in without]
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return text.getvalue()


def read_csv(path: str | Path, kind: type[Record]) -> list[Record]:
    """Read what `to_csv` wrote.

    Args:
        path: of the file.
        kind: the dataclass.

    Raises:
        InputError: the file is not text or is empty, a value does not have its field's type, or a
            column is missing whose field has no default.
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
    """Write seconds with four digits in a suitable unit: 1.234 ms, 56.70 s.

    Args:
        seconds: to write.
    """
    scale, unit = next(
        (each for each in ((1.0, "s"), (1e-3, "ms")) if abs(seconds) >= each[0]), (1e-6, "us")
    )
    return f"{seconds / scale:.4g} {unit}"


def order_of(queue: str, uses_order: bool) -> str:
    """Say which order ready ops run in: the method's, the default one, or the system's.

    Args:
        queue: of the system.
        uses_order: whether the method chose the order.
    """
    if queue not in ("priority", "strict"):
        return queue
    return "own" if uses_order else "b_level"


def plain_table(
    title: str, words: Sequence[str], numbers: Sequence[str], *, note: str | None = None
) -> Table:
    """Return an empty rich table: words are left-aligned, numbers right-aligned.

    Args:
        title: above the table.
        words: headings of columns with words.
        numbers: headings of columns with numbers.
        note: below the table.
    """
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
    """Return a console for the terminal; for a file or a pipe it is wide enough for all tables.

    It prints texts literally, because an op may be called ``[/b]`` or ``:smile:``.
    """
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, width=140)
