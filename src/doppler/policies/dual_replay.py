"""Replay of recorded choices with gradients: log-probability and entropy of every step.

Shape suffixes: T steps of all episodes in a row, N candidates of all steps, D devices, F features,
S hidden of SEL, P hidden of PLC.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.utils import scatter

from doppler.policies.dual_rollout import Record
from doppler.policies.encoder import LEAKINESS


class SelRows:
    """The recorded candidates of some episodes, one row each, as tensors.

    op: [N]. x: [N, F]. step: [N] step t of episode b is step b * V + t. chosen: [T] the row of the
    choice. num_steps: T.
    """

    def __init__(self, record: Record) -> None:
        rows_B = record.candidate_ptr[:, -1]
        first_B = np.concatenate([[0], np.cumsum(rows_B)[:-1]])
        self.num_steps = record.op.size
        self.op = torch.from_numpy(_joined(record.candidate_op, rows_B))
        self.x = torch.from_numpy(_joined(record.candidate_x, rows_B))
        self.step = torch.repeat_interleave(
            torch.arange(self.num_steps),
            torch.from_numpy(np.diff(record.candidate_ptr, axis=1).ravel()),
        )
        self.chosen = torch.from_numpy((record.chosen + first_B[:, None]).ravel())


def _joined(rows: NDArray, num_B: NDArray[np.int64]) -> NDArray:
    return np.concatenate([rows[b, : num_B[b]] for b in range(len(num_B))])


def sel_choices(
    hidden_NS: Tensor, out: nn.Linear, step_N: Tensor, chosen_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [T] of SEL's choices, from the sums of its first layer."""
    logit_N = out(nn.functional.leaky_relu(hidden_NS, LEAKINESS))[:, 0]
    num_steps = len(chosen_T)
    top_T = scatter(logit_N.detach(), step_N, dim_size=num_steps, reduce="max")
    shifted_N = logit_N - top_T[step_N]
    total_T = scatter(shifted_N.exp(), step_N, dim_size=num_steps, reduce="sum")
    log_prob_N = shifted_N - total_T.log()[step_N]
    entropy_T = scatter(-log_prob_N.exp() * log_prob_N, step_N, dim_size=num_steps, reduce="sum")
    return log_prob_N[chosen_T], entropy_T


def plc_choices(
    hidden_TDP: Tensor, mid: nn.Linear, out: nn.Linear, closed_TD: Tensor, device_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [T] of PLC's choices, from the sums of its first layer."""
    hidden_TDP = mid(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))
    logit_TD = out(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))[..., 0]
    log_prob_TD = logit_TD.masked_fill(closed_TD, -torch.inf).log_softmax(dim=-1)
    entropy_TD = -log_prob_TD.exp() * log_prob_TD.masked_fill(closed_TD, 0.0)
    return log_prob_TD.gather(1, device_T[:, None])[:, 0], entropy_TD.sum(1)
