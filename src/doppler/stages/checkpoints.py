"""Checkpoints that survive a kill at any moment, and reading them back.

A kill leaves either the old or the new checkpoint; resumed training repeats, draw by draw, what
came after it.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from doppler.errors import InputError
from doppler.problem import Problem
from doppler.stages.best_so_far import NOTHING, Found
from doppler.stages.optimisation import Effort

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"
# In place of a path: the weights that come with the package, trained on many problems.
PRETRAINED = "pretrained"
_PRETRAINED_PATH = Path(__file__).resolve().parents[1] / "pretrained" / "doppler.ckpt"


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write the whole training state, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    trainer.save_checkpoint(partial)
    os.replace(partial, path)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, or the one that comes with the package.

    Raises:
        InputError: no such file, or not a checkpoint of this program.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"stage.init_from: must be auto, null or a path, got {path!r}")
    if str(path) == PRETRAINED:
        path = _PRETRAINED_PATH
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # unpickling a file of any content can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: unreadable checkpoint ({reason})") from None
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise InputError(f"{path}: not a checkpoint (no weights in it)")
    return checkpoint


def load_policy_weights(policy: torch.nn.Module, path: str | Path) -> None:
    """Set a policy's weights to those of a checkpoint of any stage.

    Raises:
        InputError: unreadable, or made for a policy of another kind or size.
    """
    state = load_checkpoint(path)["state_dict"]
    prefix = "policy."
    weights = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise InputError(f"{path}: weights of another policy: {detail}") from None


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

    directory: of the run. every_s: seconds between two writes of last.ckpt.
    """

    def __init__(self, *, directory: Path, every_s: float) -> None:
        self._directory = directory
        self._every_s = every_s
        self._written = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        if time.perf_counter() - self._written >= self._every_s:
            save_checkpoint(trainer, self._directory / LAST)
            self._written = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        save_checkpoint(trainer, self._directory / LAST)
