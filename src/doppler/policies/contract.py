"""What stages, ablations and inference know of a policy.

Shape suffixes: B episodes, V ops (an episode has V steps), D devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.baselines import placements_of_steps
from doppler.env import ProblemView
from doppler.support.errors import InputError


class DivergedError(InputError):
    """A policy that decides nothing any more: its training has diverged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """The decisions of B episodes, in order.

    Attributes:
        op: [B, V] the op placed at each step.
        device: [B, V] the device it went to.
        log_prob: [B] log-probability of the whole episode as the rollout computed it.
        record: what the policy needs to recompute it with gradients; its own business.
        advised: op and device [B, V] that would have been chosen instead at the states which these
            decisions lead to: of them `Policy.log_prob` then tells.

    Raises:
        DivergedError: the policy's probabilities are no numbers.
    """

    op: NDArray[np.int64]
    device: NDArray[np.int64]
    log_prob: NDArray[np.float64]
    record: Any
    advised: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def judged(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Op and device [B, V] whose log-probability is asked for."""
        return (self.op, self.device) if self.advised is None else self.advised

    def __post_init__(self) -> None:
        if np.isnan(self.log_prob).any() or (self.op < 0).any() or (self.device < 0).any():
            raise DivergedError("the policy's probabilities are not finite")

    def placements(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Device and priority per op, [B, V] each; the priority is the order of decisions."""
        return placements_of_steps(self.op, self.device)


class Policy(Protocol):
    """Chooses an op and a device, step by step; one set of weights for any problem.

    ``explore`` is None to sample from the policy's own distribution, else the probability of a
    uniformly random choice instead of the most likely one (0 is greedy).

    The episodes of a merged view (env/merging.py) keep groups of ops together.

    A policy may have ``network_prefix``: parameters whose names begin so are those of its network,
    which learns at a rate of its own.
    """

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        """Play episodes, without gradients."""
        ...

    def follow(
        self, view: ProblemView, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
    ) -> Decisions:
        """Episodes that take the given decisions, recorded as the policy's own.

        Raises:
            InputError: a decision that is none: an op before its producers, a forbidden device.
        """
        ...

    def log_prob(
        self, view: ProblemView, *decisions: Decisions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy of whole episodes, [B] each, with gradients.

        Of several decisions: of all their episodes in a row, from one pass over the graph where
        the policy has one.
        """
        ...


@runtime_checkable
class Bindable(Protocol):
    """A policy that can learn more of one problem than what carries over to others."""

    def bind(self, view: ProblemView) -> None:
        """From now on it serves this problem alone."""
        ...

    def completed(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights of another such policy as this one loads them, bound or not."""
        ...


@runtime_checkable
class Returns(Protocol):
    """A policy whose episodes can return to a good one and play only some of its steps anew."""

    def return_to(
        self,
        view: ProblemView,
        op_V: NDArray[np.int64],
        device_V: NDArray[np.int64],
        window_B2: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Decisions:
        """Play episodes, without gradients; `Policy.log_prob` counts the steps played anew.

        Args:
            view: the problem.
            op_V: the op of each step of the episode to return to.
            device_V: the device of each step.
            window_B2: of each new episode the first step that it plays anew, and the first one
                after these.
            rng: draws what the policy chooses.

        Source: Go-Explore (Ecoffet, Huizinga, Lehman, Stanley, Clune, Nature 2021).
        """
        ...


def in_a_row(
    results: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [B] of several decisions, in a row."""
    log_prob_B, entropy_B = map(torch.cat, zip(*results, strict=True))
    return log_prob_B, entropy_B
