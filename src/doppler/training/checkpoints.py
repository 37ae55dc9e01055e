"""Writes checkpoints that survive a kill at any moment, and reads them back.

A kill leaves either the old or the new checkpoint. A resumed training repeats all random draws that
came after it.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from doppler.graph.formats import replaced
from doppler.policies.weights import check_kinds, load_checkpoint
from doppler.problem import Problem
from doppler.search import NO_PLACEMENT, Effort, ScoredPlacement
from doppler.support.errors import InputError
from doppler.support.files.values import fault, read_integer, read_number
from doppler.support.stopping import deferred, unhurried

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"
# What Lightning needs to resume, besides the weights.
_LIGHTNING = ("epoch", "global_step", "loops", "optimizer_states", "lr_schedulers")


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write the whole training state atomically, also after a signal.

    Args:
        trainer: Lightning's.
        path: of the file.
    """
    with unhurried(), replaced(path) as partial:
        trainer.save_checkpoint(partial)


def updates_done(directory: Path) -> int:
    """Return the update from which a training in a run's directory resumes; 0 if it starts anew.

    Args:
        directory: of the run.

    Raises:
        InputError: last.ckpt is damaged.
    """
    last = directory / LAST
    if not last.exists():
        return 0
    return read_integer(load_checkpoint(last).get("global_step"), f"{last}: global_step")


def check_resumable(path: Path, module: LightningModule) -> None:
    """Refuse a checkpoint from which a training could not resume.

    Args:
        path: of the checkpoint.
        module: to be trained.

    Raises:
        InputError: names what the checkpoint lacks, or what does not fit this training; or as
            `effort_of`.
    """
    checkpoint = load_checkpoint(path)
    for key in _LIGHTNING:
        if key not in checkpoint:
            raise InputError(f"{path}: {key!r} is missing: no training can go on from it")
    check_kinds(module, checkpoint["state_dict"], f"{path}: state_dict: ")
    _effort_in(checkpoint, path)  # refuses damaged numbers
    try:
        module.load_state_dict(checkpoint["state_dict"])
        module.on_load_checkpoint(checkpoint)  # Lightning will do both again
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: belongs to another training, or is damaged ({reason})") from None


def effort_of(path: str | Path) -> Effort:
    """Return the effort that made the weights of a checkpoint.

    Args:
        path: of the checkpoint.

    Raises:
        InputError: the stored numbers are damaged.
    """
    return _effort_in(load_checkpoint(path), path)


def _effort_in(checkpoint: dict[str, Any], path: str | Path) -> Effort:
    kept = checkpoint.get("doppler", {})
    effort = Effort(
        read_integer(kept.get("evaluations", 0), f"{path}: doppler.evaluations"),
        read_number(kept.get("elapsed_s", 0.0), f"{path}: doppler.elapsed_s"),
    )
    if effort.evaluations < 0:
        raise fault(f"{path}: doppler.evaluations", "a number of at least 0", effort.evaluations)
    if effort.seconds < 0:
        raise fault(f"{path}: doppler.elapsed_s", "a number of at least 0", effort.seconds)
    return effort


def found_of(path: str | Path, problem: Problem) -> ScoredPlacement:
    """Return the best placement for a problem that was found while making the weights.

    Args:
        path: of the checkpoint.
        problem: of the placement.

    Raises:
        InputError: the stored placement is damaged.
    """
    kept = load_checkpoint(path).get("doppler", {})
    if "best" not in kept:
        return NO_PLACEMENT
    try:
        return ScoredPlacement.restored(kept["best"], problem)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # InputError is a ValueError
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{path}: doppler.best: {reason}") from None


class LastCheckpoint(Callback):
    """Writes checkpoints/last.ckpt, from which an interrupted run resumes.

    A signal ends the training after the present update, whose state is saved.

    Args:
        directory: of the run.
        every_s: seconds between two writes of last.ckpt. Lightning's own ModelCheckpoint overwrites
            the existing file in place, so a kill would damage it.
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
            self._stack.close()  # raises a signal that arrived meanwhile

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        save_checkpoint(trainer, self._directory / LAST)
        self._stack.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._stack.__exit__(type(exception), exception, exception.__traceback__)
