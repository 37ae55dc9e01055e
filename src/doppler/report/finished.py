"""Reads finished runs from disk: summary, rows, configuration, metrics."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from doppler.report.paired import PAIRED_FILE, PairedRatio, read_paired
from doppler.report.rows import (
    CONFIG_FILE,
    METRICS_FILE,
    RESULTS_FILE,
    SUMMARY_FILE,
    ResultRow,
    read_results,
)
from doppler.report.summaries import read_summary
from doppler.support.errors import InputError
from doppler.support.files import read_text, read_yaml


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedRun:
    """The content of one run directory.

    Attributes:
        directory: of the run.
        summary: content of summary.json.
        rows: methods of its table, the main one first; empty for a calibration.
        paired: ratios of methods that were measured in turns.
        config: the resolved configuration.
    """

    directory: Path
    summary: dict[str, Any]
    rows: list[ResultRow]
    paired: list[PairedRatio]
    config: dict[str, Any]

    @property
    def is_learned(self) -> bool:
        """Whether its main method is a policy."""
        return self.summary["stage"] != "evaluate"

    @property
    def controls(self) -> set[str]:
        """Methods of its rows that learn nothing: baselines, and searches on the real system."""
        measured = (self.config.get("stage") or {}).get("measured") or ()
        return {*(self.config.get("baseline") or ()), *(f"{name} measured" for name in measured)}

    @property
    def budget(self) -> int:
        """Executions that each method might use; 0 if the configuration names no budget."""
        kind = "measured_evaluations" if self.rows[0].system_kind == "measured" else "evaluations"
        return int((self.config.get("budget") or {}).get(kind) or 0)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The learning curve (see `read_metrics`)."""
        return read_metrics(self.directory)


def read_metrics(directory: Path) -> pd.DataFrame:
    """Read the learning curve of a run, a row per update with index `step`; empty without training.

    The trainings in folders of the run, such as imitation/ and settling/, have curves of their own.
    Rows that a kill truncated are left out. Several rows of one step, with complementary gaps,
    become one.

    Args:
        directory: of the run.
    """
    versions = sorted(directory.glob(f"version_*/{METRICS_FILE}"))  # of other CSV loggers
    paths = [path for path in (directory / METRICS_FILE, *versions) if path.exists()]
    try:
        parts = [pd.read_csv(io.StringIO(read_text(path)), on_bad_lines="skip") for path in paths]
    except (pd.errors.ParserError, pd.errors.EmptyDataError, InputError):
        return pd.DataFrame()
    if not parts or not all("step" in part for part in parts):
        return pd.DataFrame()
    table = pd.concat(parts).apply(pd.to_numeric, errors="coerce").dropna(subset="step")
    return table.groupby("step").last()


def read_run(directory: Path) -> FinishedRun:
    """Read a finished run.

    Args:
        directory: of the run.

    Raises:
        InputError: names the file that is damaged.
    """
    summary = read_summary(directory)
    # Calibrations, descriptions and steps whose placement does not fit have no rows.
    results = directory / RESULTS_FILE
    rows = read_results(results) if results.exists() or "makespan_s" in summary else []
    if len({(row.problem, row.system_kind, row.rules) for row in rows}) > 1:
        raise InputError(f"{results}: rows of several problems or systems")
    path = directory / CONFIG_FILE
    config = read_yaml(path)
    if not isinstance(config, dict) or "workload" not in config:
        raise InputError(f"{path}: not a configuration")
    turns = directory / PAIRED_FILE
    paired = read_paired(turns) if turns.exists() else []
    named = {str(key): value for key, value in config.items()}
    return FinishedRun(directory=directory, summary=summary, rows=rows, paired=paired, config=named)


def unfinished_runs(folders: Iterable[Path]) -> list[str]:
    """Return a line for each run that has failed, was interrupted, or still goes on.

    Args:
        folders: searched recursively.
    """
    begun = {path.parents[1] for folder in folders for path in sorted(folder.rglob(CONFIG_FILE))}
    return [f"{one}: not finished" for one in sorted(begun) if not (one / SUMMARY_FILE).exists()]


def find_runs(folders: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Find all finished runs with results in some folders, each once.

    Args:
        folders: searched recursively.

    Returns:
        The runs, and a line for each that cannot be read.

    Raises:
        InputError: a folder does not exist, or no run can be read.
    """
    found: dict[Path, FinishedRun] = {}
    damaged: dict[Path, str] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such directory")
        for path in sorted(folder.rglob(SUMMARY_FILE)):  # exists only if the run is finished
            try:
                run = read_run(path.parent)
            except (InputError, OSError) as error:
                damaged.setdefault(path.resolve(), " ".join(str(error).split()))
                continue
            if run.rows or {"fidelity", "accuracy"} & run.summary.keys():
                found.setdefault(path.resolve(), run)
    if not found:
        if damaged:
            first, *more = damaged.values()
            others = f" (and {len(more)} more)" if more else ""
            raise InputError(f"no run that can be read: {first}{others}")
        raise InputError("no finished run (summary.json) in the given directories")
    return list(found.values()), list(damaged.values())
