"""Finished runs as they lie on disk: summary, rows, configuration, metrics."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from doppler.errors import InputError
from doppler.report.metrics import METRICS_FILE
from doppler.report.rows import RESULTS_FILE, SUMMARY_FILE, ResultRow, read_results


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """One run directory."""

    directory: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What summary.json says.

        Raises:
            InputError: it is not one that a run wrote.
        """
        path = self.directory / SUMMARY_FILE
        try:
            summary = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        if not isinstance(summary, dict) or not {"stage", "seed"} <= summary.keys():
            raise InputError(f"{path}: not the summary of a run")
        return summary

    @cached_property
    def rows(self) -> list[ResultRow]:
        """The methods of its table, the one that the run is about first; none of a calibration."""
        path = self.directory / RESULTS_FILE
        return read_results(path) if path.exists() else []

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        loaded = OmegaConf.load(self.directory / ".hydra/config.yaml")
        config = OmegaConf.to_container(loaded)
        assert isinstance(config, dict)
        return {str(key): value for key, value in config.items()}

    @property
    def is_learned(self) -> bool:
        """Whether it is about a policy."""
        return self.summary["stage"] != "evaluate"

    def metrics(self) -> list[dict[str, float]]:
        """Its learning curve, a row per update; none where nothing was trained."""
        path = self.directory / METRICS_FILE
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return [
                {key: float(value) for key, value in row.items() if value}
                for row in csv.DictReader(file)
            ]


def find_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """All finished runs below the given folders that have something to report, each once.

    Raises:
        InputError: a folder that does not exist, a summary that no run wrote, or no finished run
            in any of them.
    """
    found: dict[Path, FinishedRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such directory")
        for path in sorted(folder.rglob(SUMMARY_FILE)):  # there only when the run is finished
            run = FinishedRun(path.parent)
            if run.rows or "fidelity" in run.summary:
                found.setdefault(path.parent.resolve(), run)
    if not found:
        raise InputError("no finished run (summary.json) in the given directories")
    return list(found.values())


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What sets each of some configurations apart: ``memory_bytes=1e9``, by the shortest keys."""
    flat = [_flatten(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return [
        ", ".join(f"{key.rsplit('.', 1)[-1]}={one[key]}" for key in differing if key in one)
        for one in flat
    ]


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
