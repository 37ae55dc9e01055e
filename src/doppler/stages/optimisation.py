"""What the training stages share: random streams, the optimiser, the endless dataset."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import IterableDataset

from doppler.errors import check_at_least as check_at_least  # moved; stages/ goes
from doppler.errors import check_count as check_count
from doppler.search.effort import NO_EFFORT as NO_EFFORT
from doppler.search.effort import Effort as Effort
from doppler.search.effort import seeded_generator as seeded_generator


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
