"""The interface of policies for training stages, ablations and inference.

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
    """A training has diverged, so that the policy's probabilities are not finite."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """The decisions of B episodes, in order.

    Attributes:
        op: [B, V] the op placed at each step.
        device: [B, V] the device it went to.
        log_prob: [B] log-probability of the whole episode as the rollout computed it.
        record: what the policy needs to recompute the log-probability with gradients; private to
            it.
        advised: op and device [B, V] that should have been chosen in the states which these
            decisions lead to. If given, `Policy.log_prob` is that of the advice.

    Raises:
        DivergedError: the policy's probabilities are not finite.
    """

    op: NDArray[np.int64]
    device: NDArray[np.int64]
    log_prob: NDArray[np.float64]
    record: Any
    advised: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def judged(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Op and device [B, V] whose log-probability counts: the advice, or else the decisions."""
        return (self.op, self.device) if self.advised is None else self.advised

    def __post_init__(self) -> None:
        if np.isnan(self.log_prob).any() or (self.op < 0).any() or (self.device < 0).any():
            raise DivergedError("the policy's probabilities are not finite")

    def placements(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Device and priority of each op, [B, V] each; the priority is the order of decisions."""
        return placements_of_steps(self.op, self.device)


class Policy(Protocol):
    """Chooses an op and a device step by step; one set of weights serves any problem.

    ``explore`` is None to sample from the policy's own distribution. Otherwise it is the
    probability of a uniformly random choice instead of the most likely one (0 is greedy).

    Episodes on a merged view (env/merging.py) keep groups of ops together.

    A policy may have ``network_prefixes``. Parameters whose names start with one of them belong to
    its network, which has its own learning rate. All others share one rate.
    """

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        """Play episodes without gradients.

        Args:
            view: the problem.
            num_episodes: B.
            explore: see above.
            rng: the only source of randomness.
        """
        ...

    def follow(
        self, view: ProblemView, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
    ) -> Decisions:
        """Play episodes that take the given decisions, recorded as if they were the policy's own.

        Args:
            view: the problem.
            op_BV: the op of each step.
            device_BV: its device.

        Raises:
            InputError: an op comes before its producers, or its device is forbidden.
        """
        ...

    def log_prob(
        self, view: ProblemView, *decisions: Decisions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probability and entropy of whole episodes, [B] each, with gradients.

        Args:
            view: the problem.
            decisions: of one or more calls; the results of their episodes are concatenated. A
                policy with one pass over the graph makes it only once.
        """
        ...


@runtime_checkable
class Bindable(Protocol):
    """A policy that can learn more about one problem than what carries over to others."""

    def bind(self, view: ProblemView) -> None:
        """Bind the policy to one problem; from now on it serves no other."""
        ...

    def completed(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Convert weights of another such policy, bound or not, so that this one can load them."""
        ...


@runtime_checkable
class Returns(Protocol):
    """A policy that can repeat a given episode and decide only a window of its steps anew."""

    def return_to(
        self,
        view: ProblemView,
        op_V: NDArray[np.int64],
        device_V: NDArray[np.int64],
        window_B2: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Decisions:
        """Play episodes that repeat a given one outside a window of steps.

        The policy decides the steps in the window anew, given everything before them.
        `Policy.log_prob` of such an episode covers only the steps in the window. No gradients are
        recorded.

        Args:
            view: the problem.
            op_V: the op of each step of the given episode.
            device_V: the device of each step of the given episode.
            window_B2: for each new episode, the first step of its window and the first step after
                it.
            rng: samples the decisions.

        Returns:
            One episode per window.

        Source: Go-Explore (Ecoffet, Huizinga, Lehman, Stanley, Clune, Nature 2021).
        """
        ...


def in_a_row(
    results: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate log-probabilities and entropies [B] of several decisions.

    Args:
        results: a pair per decisions.
    """
    log_prob_B, entropy_B = map(torch.cat, zip(*results, strict=True))
    return log_prob_B, entropy_B
