"""The directory of a run: who may write there, and whether the run is new, interrupted or finished.

``<output_dir>/<stage>/<workload>/<cluster>/<method>/seed=<n>-<hash>/``
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from doppler.experiment.log import LOG_FILE
from doppler.graph.formats import held, write_atomically
from doppler.problem import Placement
from doppler.report.rows import CONFIG_FILE, SUMMARY_FILE
from doppler.support.errors import InputError
from doppler.support.files import lock_file, read_damaged_text, read_json
from doppler.support.files.values import read_number
from doppler.system import SystemKind

OVERRIDES_FILE = ".hydra/overrides.yaml"
IDENTITY_FILE = ".hydra/run_hash"
LOCK_FILE = ".lock"
PLACEMENT_FILE = "placement.json"
AGENTS_FILE = "agents.json"
CHECKPOINTS = "checkpoints"
# How long to wait for another run that does the same step: it may train for hours.
_LIMIT_S = 24 * 3600.0
_WARN = logging.getLogger(__name__).warning

Summary = dict[str, Any]


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run.

    Attributes:
        path: of the directory.
        identity: hash of the configuration and problem. A run with another hash may not write here.
    """

    path: Path
    identity: str

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete: the summary is written last."""
        return (self.path / SUMMARY_FILE).exists()

    def summary(self) -> Summary:
        """Read the summary of a finished run.

        Raises:
            InputError: the file is damaged.
        """
        path = self.path / SUMMARY_FILE
        try:
            summary = read_json(path)
        except InputError:
            raise InputError(f"{path}: damaged") from None
        if not isinstance(summary, dict) or not {"stage", "seed"} <= summary.keys():
            raise InputError(f"{path}: damaged")
        return summary

    def going_on(self, inner: str) -> str:
        """Say what the same command does after an interruption (see `stopping.going_on`).

        Args:
            inner: ignored, because a run contains no other runs.
        """
        begun = (self.path / CHECKPOINTS).is_dir()
        how = f"goes on from {self.path}" if begun else f"runs it again ({self.path})"
        return f"the same command {how}"

    def write_summary(self, summary: Summary) -> None:
        """Write the summary, which marks the run as finished."""
        write_atomically(self.path / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")

    def write_agents(self, members: list[dict[str, Any]]) -> None:
        """Write the processes that execute for the run: rank, host and pid of each."""
        write_atomically(self.path / AGENTS_FILE, json.dumps(members, indent=1) + "\n")

    def keep_best(self, placement: Placement, seconds: float, kind: SystemKind) -> None:
        """Save a placement, unless an interrupted run has left a better one.

        Args:
            placement: the best one so far.
            seconds: its makespan.
            kind: whether it was simulated or measured.
        """
        if self._kept_s() > seconds:
            self.save_placement(placement, seconds, kind)

    def save_placement(self, placement: Placement, seconds: float, kind: SystemKind) -> None:
        """Write the placement of the run's main method.

        Args:
            placement: what to save.
            seconds: its makespan.
            kind: whether it was simulated or measured.
        """
        extra = {"makespan_s": seconds, "system_kind": kind}
        placement.save(self.path / PLACEMENT_FILE, extra)

    def _kept_s(self) -> float:
        try:
            return read_number(read_json(self.path / PLACEMENT_FILE)["makespan_s"], "makespan_s")
        except (InputError, KeyError, TypeError):
            return float("inf")

    @contextmanager
    def claimed(self, cfg: DictConfig, overrides: Sequence[str], *, wait: bool) -> Iterator[None]:
        """Lock the directory against other processes and write the configuration into it.

        With ``overwrite`` the results of an earlier run in this directory are removed first.

        Args:
            cfg: the configuration of the run.
            overrides: of the command line.
            wait: wait until another process that runs there is done, instead of failing.

        Raises:
            InputError: the directory holds another run or unrelated files, another process runs in
                it, it cannot be written, or other runs in it would be overwritten. Nothing is
                changed then.
        """
        self._check_holder()
        if cfg.overwrite:
            self._check_alone()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        lock = lock_file(
            self.path / LOCK_FILE, str(self.path), limit_s=_LIMIT_S if wait else 0.0, say=_WARN
        )
        try:
            if cfg.overwrite:
                self._clear()
            write_atomically(self.path / IDENTITY_FILE, self.identity + "\n")
            write_atomically(self.path / CONFIG_FILE, OmegaConf.to_yaml(cfg, resolve=True))
            listed = "".join(f"- {override}\n" for override in overrides)
            write_atomically(self.path / OVERRIDES_FILE, listed or "[]\n")
            try:
                with held(self.path):
                    yield
            except OSError as error:
                if self.path.is_dir():
                    raise
                raise InputError(
                    f"{self.path}: deleted while the run wrote there; the same command begins anew"
                ) from error
        finally:
            os.close(lock)

    def _check_holder(self) -> None:
        """Refuse a directory that holds results of another run; a log file is not a result."""
        if not self.path.is_dir() or {path.name for path in self._results()} <= {LOG_FILE}:
            return
        file = self.path / IDENTITY_FILE
        holder = read_damaged_text(file).strip() if file.exists() else ""
        if not holder.isalnum():
            if self.path.name.endswith(f"-{self.identity}"):
                return  # the name contains the hash, so nothing else would be here
            if file.exists():
                raise InputError(
                    f"{file}: damaged; if this run lies here: echo {self.identity} > {file}"
                )
            raise InputError(f"{self.path}: is not empty and does not hold a run")
        if holder != self.identity:
            raise InputError(
                f"{self.path}: holds a run of another configuration ({holder}, this one is "
                f"{self.identity})"
            )

    def _check_alone(self) -> None:
        """Refuse to remove other runs that lie in this directory."""
        for file in self.path.rglob(IDENTITY_FILE):
            other = file.parents[1]
            if other != self.path:
                raise InputError(
                    f"{self.path}: overwrite=true would remove another run that lies in it: {other}"
                )

    def _results(self) -> list[Path]:
        """The result files, the summary first; files of the claim are not results."""
        found = [
            path
            for path in self.path.iterdir()
            if path.name not in (LOCK_FILE, ".hydra") and not path.name.endswith(".partial")
        ]
        return sorted(found, key=lambda path: path.name != SUMMARY_FILE)

    def _clear(self) -> None:
        """Remove the results but keep the claim, so that a kill in between can be resumed."""
        for path in self._results():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
