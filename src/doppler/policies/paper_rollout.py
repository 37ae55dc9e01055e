"""Weights and record of episodes of the paper's policy.

Nothing in SEL depends on the placement, so it is reduced to one logit per op.

Shape suffixes: B episodes, V ops and steps, D devices, F features, H hidden, P hidden of a head.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
NUM_FEATURES = 5


class PaperWeights(NamedTuple):
    """Both heads as arrays; what does not depend on the placement is precomputed per op."""

    sel_logit: Float32  # [V]
    plc_op: Float32  # [V, P] first layer of PLC's head, of the op to place, bias included
    plc_placed: Float32  # [V, P] the same layer, what an op adds to the device that it is on
    device_in: Float32  # [F, H] features of a device
    device_bias: Float32  # [H]
    device_out: Float32  # [H, P] the same first layer, of the embedded features
    plc_out: Float32  # [P]


class PaperRecord(NamedTuple):
    """The choices of each episode, and what PLC saw; SEL's candidates follow from the order."""

    op: NDArray[np.int64]  # [B, V]
    device: NDArray[np.int64]  # [B, V]
    log_prob: NDArray[np.float64]  # [B]
    device_x: Float32  # [B, V, D, F]
    device_mask: NDArray[np.int64]  # [B, V, D]
    is_possible: NDArray[np.bool_]  # [B] whether given decisions could be followed


class Workspace(NamedTuple):
    """Small buffers."""

    logits: NDArray[np.float64]  # [max(V, D)]
    allowed: NDArray[np.int64]  # [max(V, D)], ones
    hidden: Float32  # [P]
    placed: Float32  # [D, P] sum of plc_placed over the ops on a device


def make_record(num_episodes: int, num_ops: int, num_devices: int) -> PaperRecord:
    """Allocate a record for this many episodes."""
    shape = (num_episodes, num_ops)
    return PaperRecord(
        op=np.zeros(shape, np.int64),
        device=np.zeros(shape, np.int64),
        log_prob=np.zeros(num_episodes),
        device_x=np.zeros((*shape, num_devices, NUM_FEATURES), np.float32),
        device_mask=np.zeros((*shape, num_devices), np.int64),
        is_possible=np.ones(num_episodes, np.bool_),
    )


def make_workspace(num_ops: int, num_devices: int, width: int) -> Workspace:
    """Allocate buffers for heads of this width."""
    longest = max(num_ops, num_devices)
    return Workspace(
        logits=np.zeros(longest),
        allowed=np.ones(longest, np.int64),
        hidden=np.zeros(width, np.float32),
        placed=np.zeros((num_devices, width), np.float32),
    )
