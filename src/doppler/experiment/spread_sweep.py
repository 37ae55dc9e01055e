"""The runs of a sweep as jobs of a Ray cluster: ``-m compute=ray``.

Hydra composes all of them first; then they are run, as many at a time as there are workers. Inside
of one, what would be spread is done there: its results are those of a run by itself.
"""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.compute import Here
from doppler.experiment import failures

_WIDTH = 100
_BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


class Ended(NamedTuple):
    """A run that has: what it said, on both streams, and its line if it failed."""

    said: str
    errors: str
    failed: str | None


class _Runner:
    """What a worker is."""

    def run(self, shared: None, settings: dict[str, Any], overrides: list[str]) -> Ended:
        """A run from its configuration on."""
        from doppler.experiment import execute

        said, errors, failed = io.StringIO(), io.StringIO(), None
        with redirect_stderr(errors):
            try:
                console = Console(file=said, width=_WIDTH)
                execute(DictConfig(settings), overrides, console, compute=Here())
            except Exception as error:
                failed = f"{' '.join(overrides)}: {failures.tell(error)}"
        return Ended(said.getvalue(), errors.getvalue(), failed)


class SpreadSweep:
    """Runs that wait to be spread."""

    def __init__(self) -> None:
        self._jobs: list[tuple[dict[str, Any], list[str]]] = []
        self._numbers: list[int] = []
        self._compute: Any = None

    def takes(self, cfg: DictConfig, launcher: str) -> bool:
        """Whether a run of a sweep is to be spread; what others launch is spread already."""
        return bool(cfg.get("compute")) and launcher == _BASIC

    def add(self, cfg: DictConfig, overrides: Sequence[str], number: int) -> None:
        """Keep it."""
        settings: Any = OmegaConf.to_container(cfg, resolve=True)
        self._jobs.append((settings, list(overrides)))
        self._numbers.append(number)
        self._compute = cfg.compute

    def forget(self) -> None:
        """None waits: a sweep has ended, whether it was run or could not be composed."""
        self._jobs, self._numbers = [], []

    def run(self) -> None:
        """Run all that have been kept; those that fail leave their lines.

        Raises:
            InputError: there is no cluster, or no room on it.
        """
        if not self._jobs:
            return

        def tell(number: int, ended: Ended) -> None:
            sys.stdout.write(ended.said)
            sys.stdout.flush()
            sys.stderr.write(ended.errors)
            if ended.failed is not None:
                failures.keep(ended.failed, self._numbers[number])

        with instantiate(self._compute).pool(_Runner) as pool:
            pool.map("run", self._jobs, each=tell)
