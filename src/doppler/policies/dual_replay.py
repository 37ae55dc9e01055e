"""Replay of recorded choices with gradients: log-probability and entropy of every step.

Shape suffixes: B episodes, V ops, T steps of all episodes in a row, N candidates of all steps, D
devices, F features, S hidden of SEL, P hidden of PLC.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.utils import scatter

from doppler.policies.dual_rollout import Record, parts_of_episode
from doppler.policies.encoder import LEAKINESS
from doppler.support.errors import InputError


class SelRows:
    """The recorded candidates of some episodes as tensors, one row each.

    Attributes:
        op: [N] the candidate.
        x: [N, F] its features.
        scheduler_terms: [N, X] the list scheduler's terms.
        step: [N] its step; recorded step s of episode b is step b * S + s.
        chosen: [T] the row of the choice, or of the advice instead.
        num_steps: T.
    """

    def __init__(self, record: Record, advised_op_BV: NDArray[np.int64] | None = None) -> None:
        num = record.step.shape[1]
        rows_B = record.candidate_ptr[:, num]
        first_B = np.concatenate([[0], np.cumsum(rows_B)[:-1]])
        self.num_steps = record.step.size
        self.op = torch.from_numpy(_joined(record.candidate_op, rows_B))
        self.x = torch.from_numpy(_joined(record.candidate_x, rows_B))
        self.scheduler_terms = torch.from_numpy(_joined(record.candidate_terms, rows_B))
        self.step = torch.repeat_interleave(
            torch.arange(self.num_steps),
            torch.from_numpy(np.diff(record.candidate_ptr[:, : num + 1], axis=1).ravel()),
        )
        self.chosen = torch.from_numpy((record.chosen[:, :num] + first_B[:, None]).ravel())
        if advised_op_BV is not None:
            advised_T = torch.from_numpy(np.take_along_axis(advised_op_BV, record.step, 1).ravel())
            self.chosen = (self.op == advised_T[self.step]).nonzero()[:, 0]
            if len(self.chosen) != self.num_steps:
                raise InputError(
                    "algorithm.imitation.exploration: the critical path advises an op that is not "
                    "among the candidates that the policy sees, because too many ops are ready; "
                    "null imitates the critical path in its own episodes"
                )


def _joined(rows: NDArray, num_B: NDArray[np.int64]) -> NDArray:
    return np.concatenate([rows[b, : num_B[b]] for b in range(len(num_B))])


def sel_choices(
    hidden_NS: Tensor, out: nn.Linear, known_N: Tensor, step_N: Tensor, chosen_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [T] of SEL's choices.

    Args:
        hidden_NS: sums of SEL's first layer.
        out: SEL's last layer.
        known_N: what the list scheduler adds to the logits.
        step_N: the step of each candidate.
        chosen_T: the row of the candidate that each step chose.
    """
    logit_N = out(nn.functional.leaky_relu(hidden_NS, LEAKINESS))[:, 0] + known_N
    return among_candidates(logit_N, step_N, chosen_T)


def among_candidates(logit_N: Tensor, step_N: Tensor, chosen_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [T] of the candidate that each step chose, by softmax.

    Args:
        logit_N: of the candidates of all steps in a row.
        step_N: the step of each candidate.
        chosen_T: the row of the candidate that each step chose.
    """
    num_steps = len(chosen_T)
    top_T = scatter(logit_N.detach(), step_N, dim_size=num_steps, reduce="max")
    shifted_N = logit_N - top_T[step_N]
    total_T = scatter(shifted_N.exp(), step_N, dim_size=num_steps, reduce="sum")
    log_prob_N = shifted_N - total_T.log()[step_N]
    entropy_T = scatter(-log_prob_N.exp() * log_prob_N, step_N, dim_size=num_steps, reduce="sum")
    return log_prob_N[chosen_T], entropy_T


def over_steps(x_T: Tensor, record: Record) -> Tensor:
    """Sum a quantity of the recorded steps over all steps of each episode [B].

    If only some steps are recorded, each stands for its part of the episode, so the sum is
    unbiased.

    Args:
        x_T: of the recorded steps.
        record: says which steps were recorded.
    """
    (num, num_steps), num_ops = record.step.shape, record.op.shape[1]
    x_BS = x_T.view(num, num_steps)
    if num_steps < num_ops:
        x_BS = x_BS * torch.from_numpy(np.diff(parts_of_episode(num_ops, num_steps)))
    return x_BS.sum(1)


def plc_choices(
    hidden_TDP: Tensor,
    mid: nn.Linear,
    out: nn.Linear,
    known_TD: Tensor,
    closed_TD: Tensor,
    device_T: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [T] of PLC's choices.

    Args:
        hidden_TDP: sums of PLC's first layer.
        mid: PLC's second layer.
        out: PLC's last layer.
        known_TD: what the list scheduler adds to the logits.
        closed_TD: True if a device cannot be chosen.
        device_T: the device that each step chose.
    """
    hidden_TDP = mid(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))
    logit_TD = out(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))[..., 0] + known_TD
    return among_devices(logit_TD, closed_TD, device_T)


def among_devices(logit_TD: Tensor, closed_TD: Tensor, device_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [T] of the device that each step chose, by softmax.

    Args:
        logit_TD: of all devices.
        closed_TD: True if a device cannot be chosen.
        device_T: the device that each step chose.
    """
    log_prob_TD = logit_TD.masked_fill(closed_TD, -torch.inf).log_softmax(dim=-1)
    entropy_TD = -log_prob_TD.exp() * log_prob_TD.masked_fill(closed_TD, 0.0)
    return log_prob_TD.gather(1, device_T[:, None])[:, 0], entropy_TD.sum(1)
