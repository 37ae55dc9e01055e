"""Compiled: the heads of the dual policy, which compute the logits of one choice.

Dimensions: V ops, D devices, S hidden of SEL, P hidden of PLC, H hidden of either, F features, X
terms of the list scheduler, R numbers of a query or a key. Indices: v op, d device, i feature, j
hidden unit; x: features, h: the value of a hidden unit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.support.compiled import compiled

Float32 = NDArray[np.float32]
LEAKINESS = np.float32(0.1)


class HeadWeights(NamedTuple):
    """Both heads as arrays; what does not depend on the placement is precomputed per op."""

    sel_op: Float32  # [V, S] first layer, static part, bias included
    sel_in: Float32  # [F, S] first layer, dynamic features, those of groups last
    sel_out: Float32  # [S]
    sel_scheduler: Float32  # [X] weight of each term of the list scheduler
    plc_op: Float32  # [V, P] first layer, static part of the op to place, bias included
    plc_in: Float32  # [F, P] first layer, dynamic features, those of groups last
    plc_mid: Float32  # [P, P] second layer
    plc_mid_bias: Float32  # [P]
    plc_out: Float32  # [P]
    plc_scheduler: Float32  # [X]
    pair_query: Float32  # [V, R] of the op to place; R = 0 without a network
    pair_key: Float32  # [V, R] of the ops that are placed
    plc_device: Float32  # [V, D] added to the logit of a device
    sel_learned: bool  # else SEL chooses as the critical path heuristic does, ties by sel_out
    plc_learned: bool  # the same of PLC


class HeadBuffers(NamedTuple):
    """Small buffers of one thread."""

    logits: NDArray[np.float64]  # [max(V, D)]
    allowed: NDArray[np.int64]  # [max(V, D)], ones
    free: NDArray[np.int64]  # [V] which candidates an episode that returns may choose from
    hidden: Float32  # [max(S, P)]
    hidden2: Float32  # [P]
    on_device: Float32  # [D, P] PLC's first layer, what is known of a device; 0 but for encoders
    placed_keys: Float32  # [D, R] the sum of the keys of the ops on each device


def make_head_buffers(weights: HeadWeights, num_devices: int) -> HeadBuffers:
    """Buffers for one thread."""
    num_ops, sel_hidden = weights.sel_op.shape
    plc_hidden = weights.plc_op.shape[1]
    longest = max(num_ops, num_devices)
    return HeadBuffers(
        logits=np.zeros(longest),
        allowed=np.ones(longest, np.int64),
        free=np.ones(num_ops, np.int64),
        hidden=np.zeros(max(sel_hidden, plc_hidden), np.float32),
        hidden2=np.zeros(plc_hidden, np.float32),
        on_device=np.zeros((num_devices, plc_hidden), np.float32),
        placed_keys=np.zeros((num_devices, weights.pair_key.shape[1]), np.float32),
    )


@compiled
def scheduler_logit(coefficients, x):
    """Return the contribution of the list scheduler's terms to a logit.

    Args:
        coefficients: [X] weights.
        x: [X] terms.
    """
    logit = np.float32(0.0)
    for i in range(len(x)):
        logit += coefficients[i] * x[i]
    return logit


@compiled
def _add_layer(x, weights_in, hidden):
    """Add x [F] times weights [F, H] to ``hidden`` [H], in the order of F.

    It handles four rows at a time, so that sums stay in registers.
    """
    width, num, i = len(hidden), len(x), 0
    while i + 4 <= num:
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        for j in range(width):
            h = hidden[j] + x0 * weights_in[i, j] + x1 * weights_in[i + 1, j]
            hidden[j] = h + x2 * weights_in[i + 2, j] + x3 * weights_in[i + 3, j]
        i += 4
    while i < num:
        for j in range(width):
            hidden[j] += x[i] * weights_in[i, j]
        i += 1


@compiled
def _output(hidden, out):
    """The product of two vectors, in four partial sums so that additions need not wait."""
    s0, s1, s2, s3 = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    width, j = len(out), 0
    while j + 4 <= width:
        s0 += hidden[j] * out[j]
        s1 += hidden[j + 1] * out[j + 1]
        s2 += hidden[j + 2] * out[j + 2]
        s3 += hidden[j + 3] * out[j + 3]
        j += 4
    while j < width:
        s0 += hidden[j] * out[j]
        j += 1
    return (s0 + s1) + (s2 + s3)


@compiled
def _leak(hidden):
    """Apply the leaky rectifier in place."""
    for j in range(len(hidden)):
        hidden[j] = max(hidden[j], LEAKINESS * hidden[j])


@compiled
def sel_logit(weights, v, x, buffers):
    """Return SEL's logit of candidate v, without the list scheduler's terms.

    Args:
        weights: HeadWeights.
        v: op.
        x: [F] features of the candidate.
        buffers: HeadBuffers.
    """
    hidden = buffers.hidden[: weights.sel_op.shape[1]]
    for j in range(len(hidden)):
        hidden[j] = weights.sel_op[v, j]
    _add_layer(x, weights.sel_in, hidden)
    _leak(hidden)
    return _output(hidden, weights.sel_out)


@compiled
def plc_logit(weights, v, d, x, buffers):
    """Return PLC's logit of device d for op v, without the list scheduler's terms.

    Args:
        weights: HeadWeights.
        v: op.
        d: device.
        x: [F] features of op and device.
        buffers: HeadBuffers.
    """
    width = weights.plc_op.shape[1]
    hidden, hidden2 = buffers.hidden[:width], buffers.hidden2
    for j in range(width):
        hidden[j] = weights.plc_op[v, j] + buffers.on_device[d, j]
        hidden2[j] = weights.plc_mid_bias[j]
    _add_layer(x, weights.plc_in, hidden)
    _leak(hidden)
    _add_layer(hidden, weights.plc_mid, hidden2)
    _leak(hidden2)
    return _output(hidden2, weights.plc_out) + (
        weights.plc_device[v, d] + _output(buffers.placed_keys[d], weights.pair_query[v])
    )


@compiled
def add_key(weights, v, d, buffers):
    """Record that op v is on device d from now on.

    Args:
        weights: HeadWeights.
        v: op.
        d: device.
        buffers: HeadBuffers, changed.
    """
    for j in range(weights.pair_key.shape[1]):
        buffers.placed_keys[d, j] += weights.pair_key[v, j]
