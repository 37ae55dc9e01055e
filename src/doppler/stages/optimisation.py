"""What the training stages share: random streams, the optimiser, the endless dataset."""

import itertools
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import IterableDataset

from doppler.errors import InputError


def seeded_generator(seed: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each purpose of a run."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


@dataclass(frozen=True)
class Effort:
    """What it took to get somewhere: executions of a system, and seconds."""

    evaluations: int
    seconds: float


NO_EFFORT = Effort(0, 0.0)


class EpisodeTraining(pl.LightningModule):
    """What all training stages are: updates on batches of episodes, a rate that falls, a clock.

    num_updates: in all. batch_episodes: of each. learning_rate, final_learning_rate: of Adam,
    falling linearly. elapsed_s: of whole updates (episodes, execution, gradients, bookkeeping),
    over interruptions too.
    """

    num_updates: int
    batch_episodes: int
    learning_rate: float
    final_learning_rate: float

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0

    @property
    def episodes_done(self) -> int:
        """Episodes trained on so far."""
        return self.global_step * self.batch_episodes

    @property
    def num_episodes(self) -> int:
        """Episodes to train on."""
        return self.num_updates * self.batch_episodes

    def configure_optimizers(self) -> Any:
        """Adam, as Lightning wants to be told."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        final = self.final_learning_rate / self.learning_rate
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 1.0 - (1.0 - final) * min(1.0, step / self.num_updates)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """The clock runs from here."""
        self._clock_s = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """Add what has passed since the last update."""
        now_s = time.perf_counter()
        self.elapsed_s += now_s - self._clock_s
        self._clock_s = now_s


def check_at_least(key: str, value: float, least: float) -> None:
    """Refuse a number that is too small or infinite, or what is no number.

    Raises:
        InputError: names the key.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and least <= value < math.inf):
        raise InputError(f"{key}: must be a number of at least {least:g}, got {value!r}")


def check_count(key: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or one that is too small.

    Raises:
        InputError: names the key.
    """
    if type(value) is not int or value < least:
        raise InputError(f"{key}: must be a whole number of at least {least}, got {value!r}")


def log_metrics(module: pl.LightningModule, metrics: dict[str, float]) -> None:
    """One row for the present step.

    Straight to the logger: Lightning's own ``log`` rounds to 32 bits, and an update is already
    the average of a batch.
    """
    if module.logger is not None:
        module.logger.log_metrics(metrics, step=module.global_step)


class Updates(IterableDataset):
    """An endless stream of update numbers.

    The data of an update are episodes, which the module plays itself: nothing is loaded.
    """

    def __iter__(self) -> Iterator[int]:
        return itertools.count()
