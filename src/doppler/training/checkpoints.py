"""Checkpoints that survive a kill at any moment, and what is read back of them.

A kill leaves either the old or the new checkpoint; resumed training repeats, draw by draw, what
came after it.
"""

import time
from contextlib import ExitStack
from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer

from doppler.graph.formats import replaced
from doppler.policies.weights import load_checkpoint
from doppler.problem import Problem
from doppler.search import NOTHING, Effort, Found
from doppler.stopping import deferred, unhurried

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write the whole training state, atomically, also after a signal."""
    with unhurried(), replaced(path) as partial:
        trainer.save_checkpoint(partial)


def updates_done(directory: Path) -> int:
    """After how many updates a training goes on in a run's directory; 0 where it begins.

    Raises:
        InputError: last.ckpt is damaged.
    """
    last = directory / LAST
    return load_checkpoint(last)["global_step"] if last.exists() else 0


def effort_of(path: str | Path) -> Effort:
    """What it took to make the weights of a checkpoint."""
    kept = load_checkpoint(path).get("doppler", {})
    return Effort(int(kept.get("evaluations", 0)), float(kept.get("elapsed_s", 0.0)))


def found_of(path: str | Path, problem: Problem) -> Found:
    """The best placement for this problem that was found in making the weights."""
    kept = load_checkpoint(path).get("doppler", {})
    return Found.restored(kept["best"], problem) if "best" in kept else NOTHING


class LastCheckpoint(Callback):
    """Keeps checkpoints/last.ckpt, from which an interrupted run goes on.

    A signal ends the training after an update, whose state is kept.

    directory: of the run. every_s: seconds between two writes of last.ckpt. Lightning's own
    ModelCheckpoint writes into the file that is there: a kill in between would damage it.
    """

    def __init__(self, *, directory: Path, every_s: float) -> None:
        self._directory = directory
        self._every_s = every_s
        self._written = time.perf_counter()
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_stopped = self._stack.enter_context(deferred())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        stops = self._is_stopped()
        if stops or time.perf_counter() - self._written >= self._every_s:
            save_checkpoint(trainer, self._directory / LAST)
            self._written = time.perf_counter()
        if stops:
            self._stack.close()  # raises what has come

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        save_checkpoint(trainer, self._directory / LAST)
        self._stack.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._stack.__exit__(type(exception), exception, exception.__traceback__)
