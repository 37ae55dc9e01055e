"""The part of PLC's logits that comes from queries and keys, for recorded episodes, with gradients.

Shape suffixes: B episodes, V ops and steps, S recorded steps, D devices, R numbers of a query or a
key.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.policies.dual_pairs_kernels import pair_gradients, pair_logits
from doppler.policies.dual_rollout import Record


class _Pairs(torch.autograd.Function):
    """query_v . the sum of key_u over the ops u that are on d when v is placed.

    A product of matrices would need V x V numbers per episode. Running sums need V x D x R
    operations, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, query_VR: Tensor, key_VR: Tensor, record: Record) -> Tensor:
        ctx.save_for_backward(query_VR, key_VR)
        ctx.record = record
        num, num_steps = record.step.shape
        num_devices = record.device_mask.shape[2]
        out_BSD = np.zeros((num, num_steps, num_devices), np.float32)
        placed_DR = np.zeros((num_devices, query_VR.shape[1]), np.float32)
        pair_logits(*_arrays(query_VR, key_VR, record), placed_DR, out_BSD)
        return torch.from_numpy(out_BSD)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None]:
        query_VR, key_VR = ctx.saved_tensors
        grad_BSD = np.ascontiguousarray(grad_outputs[0].numpy())
        num_devices, width = grad_BSD.shape[2], query_VR.shape[1]
        placed_DR, later_DR = np.zeros((2, num_devices, width), np.float32)
        grad_query_VR, grad_key_VR = np.zeros((2, *query_VR.shape), np.float32)
        pair_gradients(
            *_arrays(query_VR, key_VR, ctx.record),
            grad_BSD,
            placed_DR,
            later_DR,
            grad_query_VR,
            grad_key_VR,
        )
        return torch.from_numpy(grad_query_VR), torch.from_numpy(grad_key_VR), None


def _arrays(query_VR: Tensor, key_VR: Tensor, record: Record) -> tuple[np.ndarray, ...]:
    query, key = (np.ascontiguousarray(tensor.detach().numpy()) for tensor in (query_VR, key_VR))
    return query, key, record.op, record.device, record.num_before


def pairs_of(query_VR: Tensor, key_VR: Tensor, record: Record) -> Tensor:
    """Return what queries and keys add to PLC's logits at the recorded steps [B, S, D].

    Args:
        query_VR: of the op to place.
        key_VR: of the placed ops.
        record: of the episodes.
    """
    logit_BSD: Any = _Pairs.apply(query_VR, key_VR, record)
    return logit_BSD
