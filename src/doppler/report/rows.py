"""One row of a table: one method on one problem, one system, one seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler.graph.formats import write_atomically
from doppler.report.records import read_csv, to_csv

RESULTS_FILE = "results.csv"
SUMMARY_FILE = "summary.json"  # written last: the run is finished
PLACEMENTS = "placements"  # a folder: <method>.json of every row


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """What is reported of a method (evaluation protocol).

    variant: hash of the method's own settings. problem: hash of the problem. rules: how the system
    executes. Rows that differ in problem, rules or system_kind must not be held against each other.
    queue: how the system orders ready tasks. uses_order: whether the method chose the order itself.
    evaluations: executions used, those of inherited training included. wall_s: seconds of the
    search. makespan_s: nominal. jitter_mean_s, jitter_p95_s: over fresh draws of cost jitter.
    lower_bound_s: no placement can be faster; bound names which bound it is. gap: makespan over
    lower bound, less 1.
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


def gap_over(bound_s: float, makespan_s: float) -> float:
    """Makespan over lower bound, less 1; sums of seconds agree to their last digits only."""
    if bound_s == 0.0:
        return 0.0 if makespan_s == 0.0 else float("inf")
    gap = makespan_s / bound_s - 1.0
    return 0.0 if abs(gap) < 1e-9 else gap


def write_results(path: str | Path, rows: Sequence[ResultRow]) -> None:
    """Write results.csv, atomically."""
    write_atomically(path, to_csv(ResultRow, rows))


def read_results(path: str | Path) -> list[ResultRow]:
    """Read what `write_results` wrote."""
    return read_csv(path, ResultRow)
