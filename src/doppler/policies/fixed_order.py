"""Base of policies that choose only devices, for ops in a fixed order.

Shape suffixes: B episodes, V ops and steps (step t places the t-th op of the order), D devices.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from doppler.baselines.levels import b_level_priority
from doppler.env import ProblemView
from doppler.policies.contract import Decisions
from doppler.support.errors import InputError

IntArray = NDArray[np.int64]


class Choices(NamedTuple):
    """What there is to choose in the episodes of a view.

    Attributes:
        leader_V: the step that decides for each step: the first one of its group.
        decides_V: whether a step decides for itself.
        closed_VD: True if a device cannot run the op of a step, or not all of its group.
    """

    leader_V: IntArray
    decides_V: NDArray[np.bool_]
    closed_VD: Tensor


class FixedOrderPolicy(nn.Module):
    """Places ops by falling b_level, ties in topological order, which is also their priority.

    Following given decisions takes only their devices, because the order is fixed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._orders: dict[str, IntArray] = {}

    def order(self, view: ProblemView) -> IntArray:
        """Return the op [V] of each step."""
        key = view.problem.hash
        if key not in self._orders:
            self._orders[key] = np.argsort(b_level_priority(view.problem))
        return self._orders[key]

    def choices(self, view: ProblemView) -> Choices:
        """Return what there is to choose; without merged groups every step decides."""
        order_V = self.order(view)
        _, first, group_V = np.unique(
            view.arrays.group[order_V], return_index=True, return_inverse=True
        )
        leader_V = first[group_V]
        closed_VD = torch.from_numpy(~view.arrays.able[order_V])
        return Choices(leader_V, leader_V == np.arange(len(order_V)), closed_VD)

    def decisions(
        self, view: ProblemView, device_BV: IntArray, log_prob_B: NDArray[np.float64]
    ) -> Decisions:
        """Make decisions from the device [B, V] of each step."""
        op_BV = np.tile(self.order(view), (len(device_BV), 1))
        return Decisions(op=op_BV, device=device_BV, log_prob=log_prob_B, record=None)

    def follow(self, view: ProblemView, op_BV: IntArray, device_BV: IntArray) -> Decisions:
        """Play given decisions; ``device_BV[b, t]`` is the device of op ``op_BV[b, t]``."""
        check_decisions(view, op_BV, device_BV)
        device_of_BV = np.empty_like(device_BV)
        np.put_along_axis(device_of_BV, op_BV, device_BV, axis=1)
        device_BV = self.named(view, device_of_BV[:, self.order(view)])
        decisions = self.decisions(view, device_BV, np.zeros(len(op_BV)))
        with torch.no_grad():
            log_prob_B, _ = self.log_prob(view, decisions)
        return replace(decisions, log_prob=log_prob_B.numpy().astype(np.float64))

    def named(self, view: ProblemView, device_BV: IntArray) -> IntArray:
        """Rename identical devices in decisions as this policy names them."""
        return device_BV

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def check_decisions(view: ProblemView, op_BV: IntArray, device_BV: IntArray) -> None:
    """Refuse decisions that are not an episode.

    Args:
        view: the problem.
        op_BV: the op of each step.
        device_BV: its device.

    Raises:
        InputError: an op comes before its producers, twice or is unknown, or a device cannot run
            its op.
    """
    problem = view.problem
    edges, num_ops = problem.graph.edges, problem.num_ops
    able_VD, group_V = view.arrays.able, view.arrays.group
    for b, (op_V, device_V) in enumerate(zip(op_BV, device_BV, strict=True)):
        step_V = np.argsort(op_V)
        possible = (
            np.array_equal(op_V[step_V], np.arange(num_ops))
            and (step_V[edges.src] < step_V[edges.dst]).all()
            and ((device_V >= 0) & (device_V < problem.num_devices)).all()
            and able_VD[op_V, device_V].all()
            and (device_V[step_V] == device_V[step_V][group_V]).all()
        )
        if not possible:
            raise InputError(
                f"decisions of episode {b}: an op before its producers, or on a device that "
                "cannot run it"
            )


def slowness(view: ProblemView, order_V: IntArray) -> NDArray[np.float32]:
    """Return how much slower [V, D] a step's op runs on a device than on its best one: 0 to 2.

    Args:
        view: the problem.
        order_V: the op of each step.
    """
    seconds_VD = view.problem.arrays.op_seconds[order_V]
    fastest_V1 = seconds_VD.min(axis=1, keepdims=True)
    ratio_VD = np.divide(
        seconds_VD, fastest_V1, where=fastest_V1 > 0.0, out=np.ones_like(seconds_VD)
    )
    return np.clip(ratio_VD - 1.0, 0.0, 2.0).astype(np.float32)


def distribution(logit: Tensor, closed: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [..., D] (-inf if closed) and the entropy [...].

    Args:
        logit: [..., D].
        closed: [..., D] True if a device cannot be chosen.
    """
    log_prob = logit.masked_fill(closed, -torch.inf).log_softmax(dim=-1)
    # Not -inf * 0, whose gradient is NaN.
    entropy = -(log_prob.exp() * log_prob.masked_fill(closed, 0.0)).sum(-1)
    return log_prob, entropy


def choose(log_prob: Tensor, explore: float | None, draw: NDArray[np.float64]) -> IntArray:
    """Choose devices [...] from log-probabilities.

    Args:
        log_prob: [..., D].
        explore: see contract.Policy.
        draw: [..., 2] uniform random numbers.
    """
    probability = np.exp(log_prob.numpy().astype(np.float64))
    if explore is None:
        cumulative = probability.cumsum(axis=-1)
        return (cumulative <= draw[..., :1] * cumulative[..., -1:]).sum(axis=-1)
    best = log_prob.numpy().argmax(axis=-1)
    if explore == 0.0:
        return best
    num_open = np.isfinite(log_prob.numpy()).cumsum(axis=-1)
    any_open = (num_open <= np.floor(draw[..., 1:] * num_open[..., -1:])).sum(axis=-1)
    return np.where(draw[..., 0] < explore, any_open, best)
