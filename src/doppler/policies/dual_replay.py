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


class SelRows:
    """The recorded candidates of some episodes, one row each, as tensors.

    op: [N]. x: [N, F]. scheduler_terms: [N, X].
    step: [N] recorded step s of episode b is step b * S + s.
    chosen: [T] the row of the choice, or of what was advised in its place. num_steps: T.
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
            assert len(self.chosen) == self.num_steps, "advice is to take a candidate"


def _joined(rows: NDArray, num_B: NDArray[np.int64]) -> NDArray:
    return np.concatenate([rows[b, : num_B[b]] for b in range(len(num_B))])


def sel_choices(
    hidden_NS: Tensor, out: nn.Linear, known_N: Tensor, step_N: Tensor, chosen_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [T] of SEL's choices, from the sums of its first layer.

    known_N: what the list scheduler adds to the logits.
    """
    logit_N = out(nn.functional.leaky_relu(hidden_NS, LEAKINESS))[:, 0] + known_N
    return among_candidates(logit_N, step_N, chosen_T)


def among_candidates(logit_N: Tensor, step_N: Tensor, chosen_T: Tensor) -> tuple[Tensor, Tensor]:
    """SEL's softmax: log-probability and entropy [T] of the candidate that each step chose.

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
    """The sum over all steps of each episode [B], of what the recorded ones have.

    Where some are recorded, each stands for its part of the episode: the sum is right in the mean.
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
    """Log-probability and entropy [T] of PLC's choices, from the sums of its first layer.

    known_TD: what the list scheduler adds to the logits.
    """
    hidden_TDP = mid(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))
    logit_TD = out(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))[..., 0] + known_TD
    return among_devices(logit_TD, closed_TD, device_T)


def among_devices(logit_TD: Tensor, closed_TD: Tensor, device_T: Tensor) -> tuple[Tensor, Tensor]:
    """PLC's softmax: log-probability and entropy [T] of the device that each step chose.

    Args:
        logit_TD: of all devices.
        closed_TD: True where a device cannot be chosen.
        device_T: the device that each step chose.
    """
    log_prob_TD = logit_TD.masked_fill(closed_TD, -torch.inf).log_softmax(dim=-1)
    entropy_TD = -log_prob_TD.exp() * log_prob_TD.masked_fill(closed_TD, 0.0)
    return log_prob_TD.gather(1, device_T[:, None])[:, 0], entropy_TD.sum(1)
