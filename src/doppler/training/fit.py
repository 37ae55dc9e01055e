"""Training a module in a directory, from where an interrupted training left it."""

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.loggers import Logger
from rich.console import Console
from torch.utils.data import DataLoader

from doppler.policies import DivergedError
from doppler.support.errors import InputError
from doppler.support.options import Parameters, Seconds, parameters
from doppler.training.checkpoints import LAST, LastCheckpoint, check_resumable
from doppler.training.memory import peak_bytes, reset_peak
from doppler.training.one_process import OneProcess
from doppler.training.progress import TrainingProgress
from doppler.training.updates import EpisodeTraining, Updates

# Lightning's advice on loggers, workers and devices does not concern what runs here.
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")

# What training is: updates without epochs, in one process on a CPU, the same for the same seed.
_FIXED: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": -1,
    "deterministic": True,
    "log_every_n_steps": 1,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
}
# Options of Lightning's that would make it another training, or change nothing, and what to say.
_LENGTH = (
    "budget.imitation_episodes (stage I), budget.evaluations (stage II) and "
    "budget.measured_evaluations (stage III) say how much is trained"
)
_PLACE = "a training runs in one process on a CPU, in 32 bits"
_VALIDATION = "a training has updates only, without validation and epochs"
_KEPT = "trainer.checkpoint_every_s and logger set what a run writes"
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("accelerator", "devices", "num_nodes", "strategy", "precision"), _PLACE),
    **dict.fromkeys(("sync_batchnorm", "use_distributed_sampler", "plugins"), _PLACE),
    **dict.fromkeys(("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time"), _LENGTH),
    **dict.fromkeys(("limit_train_batches", "overfit_batches", "fast_dev_run"), _LENGTH),
    **dict.fromkeys(("limit_val_batches", "limit_test_batches"), _VALIDATION),
    **dict.fromkeys(("limit_predict_batches", "num_sanity_val_steps"), _VALIDATION),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), _VALIDATION),
    **dict.fromkeys(("reload_dataloaders_every_n_epochs", "inference_mode"), _VALIDATION),
    **dict.fromkeys(("enable_checkpointing", "barebones", "logger", "callbacks"), _KEPT),
    "default_root_dir": "output_dir and run_dir say where a run is",
}
_LIGHTNINGS = parameters(pl.Trainer)
# What conf/trainer may say.
TRAINER_OPTIONS = Parameters(
    known={
        **{key: kind for key, kind in _LIGHTNINGS.known.items() if key not in _REFUSED},
        "checkpoint_every_s": Seconds,
    },
    required=frozenset({"checkpoint_every_s"}),
    takes_any=False,
)


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Refuse options of Lightning's trainer that a training cannot have.

    Args:
        settings: of conf/trainer.

    Raises:
        InputError: names the option, and the one that does it here.
    """
    for name in settings:
        if name in _REFUSED:
            raise InputError(f"trainer.{name}: no such option, {_REFUSED[name]}")


def make_trainer(settings: Mapping[str, Any], **ours: Any) -> pl.Trainer:
    """Lightning's trainer.

    Args:
        settings: of conf/trainer.
        ours: what a run decides.

    Raises:
        InputError: settings that Lightning does not take together, or not on this machine.
    """
    if (num := settings.get("accumulate_grad_batches", 1)) != 1:
        # A training counts its executions by updates.
        raise InputError(
            f"trainer.accumulate_grad_batches: must be 1, got {num}; larger updates have a larger "
            "algorithm.reinforcement.batch_episodes"
        )
    lightnings = {key: value for key, value in settings.items() if key in _LIGHTNINGS.known}
    try:
        return pl.Trainer(**_FIXED | lightnings, plugins=[OneProcess()], **ours)
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise InputError(f"trainer: {str(error).splitlines()[0]}") from None


def fit(
    module: EpisodeTraining,
    directory: Path,
    *,
    settings: Mapping[str, Any],
    loggers: list[Logger],
    console: Console,
    say: Callable[[str], None],
) -> None:
    """Train to the end, from last.ckpt on where the directory has one.

    Args:
        module: what is trained; it plays its own episodes.
        directory: of the run.
        settings: of conf/trainer.
        loggers: are told of every update.
        console: where progress is shown.
        say: one line for the person who watches.

    Raises:
        InputError: last.ckpt is damaged, or the training diverges.
    """
    trainer = make_trainer(
        settings,
        max_steps=module.num_updates,
        default_root_dir=directory,
        logger=loggers,
        callbacks=[
            LastCheckpoint(directory=directory, every_s=settings["checkpoint_every_s"]),
            TrainingProgress(console=console),
        ],
    )
    # The tensors of an update are small: a second torch thread gains 10% on an idle machine, but
    # makes it ten times slower if other programs compute. Rollouts use all cores.
    torch.set_num_threads(1)
    last = directory / LAST
    if last.exists():
        check_resumable(last, module)  # a damaged file is named before training begins
        say(f"resuming from {last}")
    batches = DataLoader(Updates(), batch_size=None)
    reset_peak()
    try:
        trainer.fit(module, batches, ckpt_path=last if last.exists() else None, weights_only=True)
    except DivergedError as error:
        raise InputError(
            f"{module.title}: {error} at update {module.global_step}: lower "
            f"{module.options_key}.learning_rate"
        ) from None
    module.peak_bytes = peak_bytes()
