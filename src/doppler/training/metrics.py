"""metrics.csv: one row per update, complete even after interruptions."""

import csv
import io
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger

from doppler.graph.formats import naming, write_atomically
from doppler.report.rows import METRICS_FILE
from doppler.support.files import open_to_append, read_damaged_text


def spaced(namespace: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Prefix the names of metrics with a namespace: ``stage_2/loss``.

    Args:
        namespace: the prefix.
        metrics: by name.
    """
    return {f"{namespace}/{key}": value for key, value in metrics.items()}


class CsvMetrics(Logger):
    """Appends the logged metrics of every step to metrics.csv.

    Lightning's own CSV logger deletes the file of an interrupted run. This one keeps its rows up to
    the step at which training resumes.

    Args:
        save_dir: the run directory.
    """

    def __init__(self, *, save_dir: str | Path) -> None:
        super().__init__()
        self._path = Path(save_dir) / METRICS_FILE
        self._columns: list[str] = []

    @property
    def name(self) -> str:
        """No name: one file per run directory."""
        return ""

    @property
    def version(self) -> str:
        """No version: a run directory is one run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run directory."""
        return str(self._path.parent)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any) -> None:
        """Do nothing: the run directory contains the whole configuration."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row; the first row of a run decides the columns."""
        row = {"step": step, **{key: value for key, value in metrics.items() if key != "epoch"}}
        if not self._columns:
            self._columns = list(row)
            self._keep_rows_before(step or 0)
        with naming(self._path), open_to_append(self._path, newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _keep_rows_before(self, step: int) -> None:
        rows = []
        if self._path.exists():
            # A kill may have truncated the last line. All incomplete rows are dropped.
            text = read_damaged_text(self._path).replace("\0", "")
            whole = text[: text.rfind("\n") + 1]
            rows = [row for row in csv.DictReader(io.StringIO(whole)) if _is_before(row, step)]
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self._path, file.getvalue())


def _is_before(row: dict[str, Any], step: int) -> bool:
    number = row.get("step") or ""
    is_whole = None not in row and None not in row.values()
    return is_whole and number.isascii() and number.isdigit() and int(number) < step
