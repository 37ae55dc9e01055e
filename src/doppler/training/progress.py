"""Shows the progress of a training: episodes, episodes per second, best makespan so far."""

import time
from typing import Protocol

from pytorch_lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from doppler.report.rows import format_seconds


class Progressing(Protocol):
    """What a Lightning module tells about its progress.

    Attributes:
        title: of the training.
        num_episodes: to train on.
        best_s: best makespan so far, seconds.
    """

    title: str
    num_episodes: int
    best_s: float

    @property
    def episodes_done(self) -> int:
        """Episodes trained on so far."""
        ...


class TrainingProgress(Callback):
    """A progress bar on a terminal; elsewhere a line every few seconds.

    Lightning's own bars count batches, which have no total in an endless stream, do not know
    episodes, and print nothing if output goes to a file.
    """

    def __init__(self, *, console: Console, seconds_between_lines: float = 10.0) -> None:
        self._console = console
        self._between = seconds_between_lines
        self._bar: Progress | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = self._last_line = time.perf_counter()
        module: Progressing = pl_module  # type: ignore[assignment]
        self._already = module.episodes_done
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("episodes  {task.fields[speed]}  best {task.fields[best]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                module.title,
                total=module.num_episodes,
                speed="",
                best="",
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        module: Progressing = pl_module  # type: ignore[assignment]
        now = time.perf_counter()
        speed = f"{(module.episodes_done - self._already) / (now - self._begin):.0f}/s"
        best = format_seconds(module.best_s) if module.best_s < float("inf") else "-"
        if self._bar is not None:
            self._bar.update(self._task, completed=module.episodes_done, speed=speed, best=best)
        elif now - self._last_line >= self._between:
            self._last_line = now
            self._console.print(
                f"{module.title}: {module.episodes_done:,} of {module.num_episodes:,} episodes, "
                f"{speed}, best {best}"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
