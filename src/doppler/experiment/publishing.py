"""Loggers of a run: made, told what it is and what it has found, closed.

They are Lightning's, named by ``_target_`` in conf/logger/. What they import is imported when a run
has something to tell them: a baseline whose results stay on disk needs no Lightning.
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
# Packages of which a logger needs one. Its name is also that of the extra that installs them.
_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
# Folders of a run in which trainings left their curves, and what dashboards call these.
_PARTS = {
    "imitation": "stage_1",
    "rl_sim": "stage_2",
    "rl_sim/settling": "settling",
    "settling": "settling",
}
# Needs no publishing: its file is in the run directory, like the results.
_CSV = "csv"


def check_loggers(chosen: Mapping[Any, Any]) -> None:
    """Refuse loggers that cannot be made.

    Args:
        chosen: their part of the configuration, by name.

    Raises:
        InputError: a package is not installed, or does not know a setting that is passed on to it.
    """
    for name, conf in chosen.items():
        packages = _PACKAGES.get(name, ())
        if packages and not any(map(find_spec, packages)):
            raise InputError(
                f"logger={name}: {packages[0]} is not installed (pip install 'doppler[{name}]')"
            )
        target: Any = target_of(conf, f"logger.{name}")
        if hasattr(target, "passes_on_to"):
            known = {**parameters(target.passes_on_to()).known, **parameters(target).known}
            check_names(f"logger.{name}", Parameters(known, frozenset(), takes_any=False), conf)


class Loggers:
    """The loggers of one run.

    chosen: their part of the configuration, by name.
    settings: what is run, as plain values.
    directory: of the run.
    namespace: of the curves of the run's own training.
    is_step: the run serves another one, which is what is told of: this one keeps its metrics.csv.
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
        if is_step:
            self._chosen = {name: conf for name, conf in self._chosen.items() if name == _CSV}
        self._settings = settings
        self._directory = directory
        self._namespace = namespace
        self._made: dict[str, Logger] = {}

    def begin(self, num_updates: int) -> "list[Logger]":
        """All of them, told what is run.

        Args:
            num_updates: after which training goes on. Whoever keeps rows in memory for a while has
                lost some if the run was killed: they are told again what metrics.csv has of them.
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
        """The rows of a metrics.csv: the update, and its numbers as dashboards name them."""
        from doppler.report.finished import read_metrics
        from doppler.training.metrics import spaced

        for step, row in read_metrics(directory).iterrows():
            values = {str(key): float(value) for key, value in row.dropna().items()}
            yield int(str(step)), spaced(namespace, values)

    def _tell_parts(self, logger: "Logger") -> None:
        """The curves of the trainings that belong to the run."""
        for part, namespace in _PARTS.items():
            if not (self._directory / part / METRICS_FILE).exists():
                continue
            for number, values in self._rows_of(self._directory / part, namespace):
                # Steps of W&B only rise; there the episodes of each stage are the axis.
                step = None if getattr(logger, "steps_rise", False) else number
                logger.log_metrics(values, step=step)

    def _make(self, name: str) -> "Logger":
        if name not in self._made:
            try:
                made = instantiate(self._chosen[name], save_dir=str(self._directory))
            except InstantiationException as error:  # settings of packages that are not ours
                line = str(error.__cause__ or error).strip().splitlines()[0]
                raise InputError(f"logger.{name}: {line}") from error
            self._made[name] = made
        return self._made[name]

    def publish(self, *, retell: bool) -> list[str]:
        """Tell what the finished run has found; each logger once, in whichever process.

        Args:
            retell: the learning curve too: the run was finished before this process began.

        Returns:
            A line for each logger that was told: how to look at it.
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
        """Close them when the context ends, however it does."""
        failed = True
        try:
            yield
            failed = False
        finally:
            with unhurried():
                for logger in self._made.values():
                    logger.finalize("failed" if failed else "success")
                    end_run = getattr(logger, "end_run", None)  # finalize ends every training too
                    if end_run is not None:
                        end_run(failed=failed)
