"""Progress of a sweep: ``run 7 of 20 (seed=3), about 6 min left``; at the end, how to see all."""

import shlex
import time
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from doppler.support.errors import printable
from doppler.support.waiting import duration

BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
_BASIC_LAUNCHER = "BasicLauncher"
# Finished runs are only shown, which is faster than this; they tell nothing about the others.
_SHOWN_S = 2.0


class SweepProgress(Callback):
    """Prints before each run of a sweep which one it is, and at the end how to see all of them.

    The remaining time is estimated from the runs so far, if runs follow each other in this process.
    """

    def __init__(self) -> None:
        self._total: int | None = None
        self._varied: set[str] = set()
        self._taken_s: list[float] = []
        self._begin_s = 0.0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Let the command's options replace those of an experiment's sweep, and count the runs."""
        replace_swept(config)
        self._total, self._varied = runs_of(config)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the line, if the run belongs to a sweep of several."""
        job = HydraConfig.get()
        self._begin_s = time.monotonic()
        if job.mode != RunMode.MULTIRUN or not self._total or self._total < 2:
            return
        words = [str(word).lstrip("+") for word in job.overrides.task]
        told = [word for word in words if word.partition("=")[0] in self._varied]
        line = f"run {job.job.num + 1} of {self._total} ({', '.join(told)})"
        in_turn = job.launcher["_target_"].endswith(_BASIC_LAUNCHER)
        if in_turn and self._taken_s:
            mean_s = sum(self._taken_s) / len(self._taken_s)
            line += f", {duration(mean_s * (self._total - job.job.num))} left"
        print(printable(line), flush=True)

    def on_job_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Record how long the run took."""
        taken_s = time.monotonic() - self._begin_s
        if taken_s > _SHOWN_S:
            self._taken_s.append(taken_s)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Say how to see the results of several runs together, if they share a folder."""
        if self._total == 1 or config.run_dir or self._varied & {"output_dir", "run_dir"}:
            return
        from doppler.report.rows import SUMMARY_FILE  # half a second

        folder = Path(config.output_dir)
        if next(folder.rglob(SUMMARY_FILE), None):
            print(f"all runs together: doppler report {shlex.quote(str(folder))}", flush=True)


def replace_swept(config: DictConfig) -> None:
    """Remove the options of ``hydra.sweeper.params`` that the command line gives itself.

    Hydra does so where both are spelled alike. The command's options have ``++`` in front (see
    `doppler.experiment.overrides`), so Hydra would repeat each run for each value that the
    experiment sweeps.

    Args:
        config: the composed configuration, including Hydra's part. Changed in place.
    """
    params = config.hydra.sweeper.get("params") or {}
    given = {str(word).partition("=")[0].lstrip("+") for word in config.hydra.overrides.task}
    with open_dict(config.hydra):
        for name in [name for name in params if str(name).lstrip("+") in given]:
            del params[name]


def runs_of(config: DictConfig) -> tuple[int | None, set[str]]:
    """Return how many runs a sweep has, and the options in which they differ.

    Args:
        config: the composed configuration, including Hydra's part.

    Returns:
        The number, None if the sweeper decides it on the way; and the names of the options.
    """
    sweeper = config.hydra.sweeper
    params = OmegaConf.to_container(sweeper.get("params") or OmegaConf.create({}))
    assert isinstance(params, dict), "params is a mapping"
    words = [f"{key}={value}" for key, value in params.items()]
    words += [str(word) for word in config.hydra.overrides.task]
    try:
        overrides = OverridesParser.create().parse_overrides(words)
        varied = {one.key_or_group for one in overrides if one.is_sweep_override()}
        if sweeper["_target_"] != BASIC_SWEEPER:
            return sweeper.get("n_trials"), varied
        return sum(map(len, BasicSweeper.split_arguments(overrides, None))), varied
    except (HydraException, AttributeError):  # a glob cannot be counted from the words alone
        return None, set()
