"""What the training stages share: random streams, the optimiser, the endless dataset."""

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import IterableDataset


def seeded_generator(seed: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each purpose of a run."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def linear_decay(
    module: nn.Module, learning_rate: float, final_learning_rate: float, num_updates: int
) -> Any:
    """Adam whose rate falls linearly over the updates, as Lightning wants to be told."""
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
    final = final_learning_rate / learning_rate
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 - (1.0 - final) * min(1.0, step / num_updates)
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }


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
