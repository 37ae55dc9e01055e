"""Replay of the paper's policies with gradients: the candidates, and the ops on each device.

Shape suffixes: B episodes, V ops and steps, D devices, T steps of all episodes in a row, N
candidates of all these steps, P hidden of a head.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.env import ProblemView
from doppler.policies.paper_replay_kernels import sum_placed_before, sum_placed_before_backward
from doppler.policies.paper_rollout import PaperRecord


def candidates_of(
    view: ProblemView, op_BV: NDArray[np.int64], judged_BV: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the candidates of every step of given episodes as rows.

    Args:
        view: the problem.
        op_BV: the op that each step takes.
        judged_BV: the op of each step whose row is wanted.

    Returns:
        op [N] and step [N] of each row (step t of episode b is b * V + t), and the row [T] of the
        candidate ``judged_BV`` of each step.
    """
    edges, (num, num_ops) = view.problem.graph.edges, op_BV.shape
    taken_BV = np.argsort(op_BV, axis=1)
    ready_BV = np.zeros_like(taken_BV)
    for b in range(num):  # an op is a candidate from the step after its last producer
        np.maximum.at(ready_BV[b], edges.dst, taken_BV[b, edges.src] + 1)
    count_Z = (taken_BV - ready_BV + 1).ravel()
    last_Z = count_Z.cumsum() - 1
    first_step_Z = (ready_BV + num_ops * np.arange(num)[:, None]).ravel()
    first_Z = last_Z - count_Z + 1
    row_N = np.arange(last_Z[-1] + 1) - np.repeat(first_Z, count_Z)
    row_at_0_BV = (first_Z - ready_BV.ravel()).reshape(num, num_ops)  # its row at step 0
    chosen_BV = np.take_along_axis(row_at_0_BV, judged_BV, axis=1) + np.arange(num_ops)
    return (
        torch.from_numpy(np.repeat(np.tile(np.arange(num_ops), num), count_Z)),
        torch.from_numpy(np.repeat(first_step_Z, count_Z) + row_N),
        torch.from_numpy(chosen_BV.ravel()),
    )


def placed_before(own_VP: Tensor, added_VP: Tensor, record: PaperRecord) -> Tensor:
    """Return for each step and device [T * D, P] the step's op plus the sum over ops placed there.

    Args:
        own_VP: of an op itself.
        added_VP: what an op adds to its device for all later steps.
        record: of the episodes.
    """
    apply = _PlacedBefore.apply
    return apply(own_VP, added_VP, record)  # pyright: ignore[reportReturnType]


class _PlacedBefore(torch.autograd.Function):
    """Compiled sums along episodes; in torch they would need a dozen passes over the result."""

    @staticmethod
    def forward(ctx: Any, own_VP: Tensor, added_VP: Tensor, record: PaperRecord) -> Tensor:
        ctx.decisions = record.op, record.device
        num_devices, width = record.device_mask.shape[-1], own_VP.shape[1]
        out_TDP = np.empty((record.op.size, num_devices, width), np.float32)
        on_DP = np.empty((num_devices, width), np.float32)
        arrays = own_VP.detach().numpy(), added_VP.detach().numpy()
        sum_placed_before(*arrays, *ctx.decisions, on_DP, out_TDP)
        ctx.num_devices = num_devices
        return torch.from_numpy(out_TDP).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        num_ops = ctx.decisions[0].shape[1]
        gradient_TDP = gradients[0].unflatten(0, (-1, ctx.num_devices)).contiguous().numpy()
        own_VP, added_VP = np.zeros((2, num_ops, gradient_TDP.shape[2]), np.float32)
        later_DP = np.empty(gradient_TDP.shape[1:], np.float32)
        sum_placed_before_backward(gradient_TDP, *ctx.decisions, later_DP, own_VP, added_VP)
        return torch.from_numpy(own_VP), torch.from_numpy(added_VP), None
