"""Shared by all trainings: the optimiser, the clock, the endless dataset."""

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from doppler.policies import DivergedError, Policy
from doppler.training.metrics import CsvMetrics, spaced


class EpisodeTraining(pl.LightningModule):
    """A training by updates on batches of episodes, with a falling rate and a clock.

    Attributes:
        policy: what is trained.
        title: of the training in progress lines.
        options_key: the key of the configuration with its options.
        num_updates: in all.
        batch_episodes: episodes of an update.
        learning_rate: first and last rate of Adam, falling linearly; at 0 nothing is learned.
        network_rate: the rate of the policy's network, if it has one, as a share of the rate. The
            logit of a pair is a product of sums over all ops, so a small step changes much.
        elapsed_s: seconds of all updates, including those before an interruption.
        peak_bytes: largest memory of the process in this training; None if unknown.
        namespace: prefix of the names of its curves in dashboards: ``stage_2/loss``.
    """

    title: str
    options_key: str
    num_updates: int
    batch_episodes: int
    learning_rate: tuple[float, float]
    network_rate: float
    policy: Policy
    namespace: str

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self.peak_bytes: int | None = None
        self._noted: dict[str, float] = {}
        self._loss = math.nan

    @property
    def episodes_done(self) -> int:
        """Episodes trained on so far."""
        return self.global_step * self.batch_episodes

    @property
    def num_episodes(self) -> int:
        """Episodes to train on."""
        return self.num_updates * self.batch_episodes

    @property
    def remaining(self) -> float:
        """Share of the updates still to come; the weights that fall to 0 are proportional to it."""
        return 1.0 - self.global_step / self.num_updates

    def configure_optimizers(self) -> Any:
        """Return Adam and its schedule in Lightning's format."""
        prefixes = tuple(f"policy.{one}" for one in getattr(self.policy, "network_prefixes", ()))
        rest, network = [], []
        for name, parameter in self.named_parameters():
            (network if name.startswith(prefixes) else rest).append(parameter)
        first = self.learning_rate[0]
        groups = [{"params": rest, "lr": first}]
        if network:
            groups.append({"params": network, "lr": first * self.network_rate})
        # All tensors in one call: the same steps to the bit, in half the time. A fused Adam would
        # take a fifth, but torch then does not count the changes of the weights, by which policies
        # notice that they have to encode the problem again.
        optimizer = torch.optim.Adam(groups, foreach=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate_left)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def rate_left(self, step: int) -> float:
        """Return the learning rate of an update as a share of the first one."""
        first, last = self.learning_rate
        kept = last / first if first else 0.0
        return 1.0 - (1.0 - kept) * min(1.0, step / max(1, self.num_updates))

    def on_train_start(self) -> None:
        """Start the clock."""
        self._clock_s = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """Add the time since the last update."""
        now_s = time.perf_counter()
        self.elapsed_s += now_s - self._clock_s
        self._clock_s = now_s

    def note_update(self, metrics: dict[str, float]) -> None:
        """Keep the metrics of the present update until its gradient is known."""
        self._noted = metrics

    def on_before_backward(self, loss: Tensor) -> None:
        """Keep the loss for the row of the update."""
        self._loss = loss.item()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the row of the update, before a checkpoint may count it as done."""
        if not self._noted:
            return
        parameters = itertools.chain.from_iterable(one["params"] for one in optimizer.param_groups)
        gradients = [one.grad for one in parameters if one.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
        row = {
            **self._noted,
            "loss": self._loss,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "gradient_norm": norm,
        }
        self._noted = {}
        self.log_update(row)

    def log_update(self, metrics: dict[str, float]) -> None:
        """Log one row for the present step.

        The row goes straight to the loggers: Lightning's own ``log`` rounds to 32 bits, and an
        update is already the average of a batch. Dashboards show the curves of all stages together,
        so names start with the stage; metrics.csv belongs to one training.
        """
        for logger in self.loggers:
            told = metrics if isinstance(logger, CsvMetrics) else spaced(self.namespace, metrics)
            logger.log_metrics(told, step=self.global_step)


def finite(loss: Tensor) -> Tensor:
    """Return the loss if it is finite.

    Args:
        loss: of an update.

    Raises:
        DivergedError: the loss is infinite or NaN.
    """
    if not loss.isfinite():
        raise DivergedError("the loss is not finite")
    return loss


class Updates(IterableDataset):
    """An endless stream of update numbers.

    The data of an update are episodes, which the module plays itself: nothing is loaded.
    """

    def __iter__(self) -> Iterator[int]:
        return itertools.count()
