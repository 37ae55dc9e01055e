"""Loggers of a run: creates them, sends them configuration and results, closes them.

They are Lightning loggers, named by ``_target_`` in conf/logger/. Their packages are imported only
when there is something to log: a baseline whose results stay on disk does not need Lightning.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from doppler.experiment.checking import check_names, target_of
from doppler.graph.formats import write_atomically
from doppler.report.rows import METRICS_FILE
from doppler.support.errors import InputError
from doppler.support.files import read_text
from doppler.support.options import Parameters, parameters
from doppler.support.stopping import unhurried

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

PUBLISHED_FILE = "published"
# A logger needs one of these packages. The extra that installs them has the logger's name.
_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
# Subfolders of a run with curves of a training, and their names in dashboards.
_PARTS = {
    "imitation": "stage_1",
    "rl_sim": "stage_2",
    "rl_sim/settling": "settling",
    "settling": "settling",
}
# Needs no publishing: its file is already in the run directory.
_CSV = "csv"


def check_loggers(chosen: Mapping[Any, Any]) -> None:
    """Refuse loggers that cannot be created.

    Args:
        chosen: the key ``logger`` of the configuration, by name.

    Raises:
        InputError: a package is not installed, or rejects a setting that is passed on to it.
    """
    for name, conf in chosen.items():
        packages = _PACKAGES.get(name, ())
        if packages and not any(map(find_spec, packages)):
            raise InputError(
                f"logger={name}: {packages[0]} is not installed (pip install '.[{name}]')"
            )
        target: Any = target_of(conf, f"logger.{name}")
        if hasattr(target, "passes_on_to"):
            known = {**parameters(target.passes_on_to()).known, **parameters(target).known}
            check_names(f"logger.{name}", Parameters(known, frozenset(), takes_any=False), conf)


class Loggers:
    """The loggers of one run.

    Args:
        chosen: the key ``logger`` of the configuration, by name.
        settings: the configuration of the run as plain values.
        directory: of the run.
        namespace: prefix of the curves of the run's own training.
        is_step: whether the run is a step of another run. Only the other run is logged then; a step
            writes just its metrics.csv.
    """

    def __init__(
        self,
        chosen: Mapping[Any, Any],
        settings: dict[str, Any],
        directory: Path,
        namespace: str,
        *,
        is_step: bool,
    ) -> None:
        self._chosen = {str(name): conf for name, conf in chosen.items()}
        # What dashboards are told again, and of a run's first stage, is read there.
        if self._chosen:
            self._chosen.setdefault(_CSV, {"_target_": "doppler.training.metrics.CsvMetrics"})
        if is_step:
            self._chosen = {name: conf for name, conf in self._chosen.items() if name == _CSV}
        self._settings = settings
        self._directory = directory
        self._namespace = namespace
        self._made: dict[str, Logger] = {}

    def begin(self, num_updates: int) -> "list[Logger]":
        """Create all loggers and send them the configuration.

        Args:
            num_updates: the update from which training continues. Loggers that buffer rows lose
                some when a run is killed, so they get earlier rows again from metrics.csv.
        """
        for name in self._chosen:
            self._make(name).log_hyperparams(self._settings)
            if num_updates:
                self._retell(name, num_updates)
        return list(self._made.values())

    def _retell(self, name: str, num_updates: float = math.inf) -> None:
        if name == _CSV:
            return
        for number, values in self._rows_of(self._directory, self._namespace):
            if number < num_updates:
                self._made[name].log_metrics(values, step=number)

    def _rows_of(self, directory: Path, namespace: str) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the rows of a metrics.csv: the update, and its values by dashboard name."""
        from doppler.report.finished import read_metrics
        from doppler.training.metrics import spaced

        for step, row in read_metrics(directory).iterrows():
            values = {str(key): float(value) for key, value in row.dropna().items()}
            yield int(str(step)), spaced(namespace, values)

    def _tell_parts(self, logger: "Logger") -> None:
        """Send the curves of the trainings in the run's subfolders."""
        for part, namespace in _PARTS.items():
            if not (self._directory / part / METRICS_FILE).exists():
                continue
            for number, values in self._rows_of(self._directory / part, namespace):
                # W&B rejects decreasing steps, so there the episodes of each stage are the x axis.
                step = None if getattr(logger, "steps_rise", False) else number
                logger.log_metrics(values, step=step)

    def _make(self, name: str) -> "Logger":
        if name not in self._made:
            try:
                made = instantiate(self._chosen[name], save_dir=str(self._directory))
            except InstantiationException as error:  # a setting that another package rejects
                line = str(error.__cause__ or error).strip().splitlines()[0]
                raise InputError(f"logger.{name}: {line}") from error
            self._made[name] = made
        return self._made[name]

    def publish(self, *, retell: bool) -> list[str]:
        """Send the results of the finished run to each logger, once, even over several processes.

        Args:
            retell: send the learning curve too, because the run was finished before this process
                began.

        Returns:
            A line for each logger that got results: how to look at them.
        """
        marker = self._directory / PUBLISHED_FILE
        told = read_text(marker).split() if marker.exists() else []
        names = [name for name in self._chosen if name not in (_CSV, *told)]
        if not names:
            return []
        from doppler.experiment.loggers import how_to_look, show
        from doppler.report.finished import read_run

        run = read_run(self._directory)
        if not run.rows:
            return []
        lines = []
        for name in names:
            logger = self._make(name)
            if retell:
                self._retell(name)
            self._tell_parts(logger)
            show(logger, self._settings, run)
            told.append(name)
            write_atomically(marker, "".join(f"{name}\n" for name in told))
            if line := how_to_look(logger):
                lines.append(line)
        return lines

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the loggers when the context ends, also after an error."""
        failed = True
        try:
            yield
            failed = False
        finally:
            with unhurried():
                for logger in self._made.values():
                    logger.finalize("failed" if failed else "success")
                    # Not in finalize, which is also called after every training.
                    end_run = getattr(logger, "end_run", None)
                    if end_run is not None:
                        end_run(failed=failed)
