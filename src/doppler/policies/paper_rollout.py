"""Compiled episodes of the paper's policy, and the record of what PLC saw.

SEL sees nothing that depends on the placement: a logit for each op is all that there is of it.
Shape suffixes: B episodes, V ops and steps, D devices, F features, H hidden, P hidden of a head.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.env.features import possible_devices, published_features
from doppler.env.process import NUM_CANDIDATES, place, reset
from doppler.policies.choosing import choose, log_prob_of
from doppler.support.compiled import compiled

Float32 = NDArray[np.float32]
LEAKINESS = np.float32(0.1)
NUM_FEATURES = 5


class PaperWeights(NamedTuple):
    """Both heads as arrays. What does not depend on the placement is summed up per op."""

    sel_logit: Float32  # [V]
    plc_op: Float32  # [V, P] first layer of PLC's head, of the op to place, bias included
    plc_placed: Float32  # [V, P] the same layer, what an op adds to the device that it is on
    device_in: Float32  # [F, H] features of a device
    device_bias: Float32  # [H]
    device_out: Float32  # [H, P] the same first layer, of the embedded features
    plc_out: Float32  # [P]


class PaperRecord(NamedTuple):
    """What was chosen in each episode, and what PLC saw; SEL's candidates follow from the order."""

    op: NDArray[np.int64]  # [B, V]
    device: NDArray[np.int64]  # [B, V]
    log_prob: NDArray[np.float64]  # [B]
    device_x: Float32  # [B, V, D, F]
    device_mask: NDArray[np.int64]  # [B, V, D]
    is_possible: NDArray[np.bool_]  # [B] whether decisions that were to be followed are some


class Workspace(NamedTuple):
    """Small buffers."""

    logits: NDArray[np.float64]  # [max(V, D)]
    allowed: NDArray[np.int64]  # [max(V, D)], ones
    hidden: Float32  # [P]
    placed: Float32  # [D, P] sum of plc_placed over the ops on a device


def make_record(num_episodes: int, num_ops: int, num_devices: int) -> PaperRecord:
    """Space for so many episodes."""
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
    """Buffers for heads of this width."""
    longest = max(num_ops, num_devices)
    return Workspace(
        logits=np.zeros(longest),
        allowed=np.ones(longest, np.int64),
        hidden=np.zeros(width, np.float32),
        placed=np.zeros((num_devices, width), np.float32),
    )


@compiled
def _plc_logit(weights, v, d, x, workspace):
    hidden, (num_embedded, width) = workspace.hidden, weights.device_out.shape
    for j in range(width):
        hidden[j] = weights.plc_op[v, j] + workspace.placed[d, j]
    for i in range(num_embedded):
        h = weights.device_bias[i]
        for f in range(NUM_FEATURES):
            h += x[f] * weights.device_in[f, i]
        h = max(h, LEAKINESS * h)
        for j in range(width):
            hidden[j] += h * weights.device_out[i, j]
    logit = np.float32(0.0)
    for j in range(width):
        logit += max(hidden[j], LEAKINESS * hidden[j]) * weights.plc_out[j]
    return logit


@compiled
def _select(weights, e, workspace, explore, seed, forced, b, t, record):
    """The place of the op of step t among the candidates; -1 if the forced one is none."""
    count, index = e.status[NUM_CANDIDATES], -1
    for i in range(count):
        workspace.logits[i] = weights.sel_logit[e.candidates[i]]
        if forced and e.candidates[i] == record.op[b, t]:
            index = i
    if not forced:
        index = choose(workspace.logits, workspace.allowed, count, explore, seed, 2 * t)
    if index >= 0:
        record.log_prob[b] += log_prob_of(workspace.logits, workspace.allowed, count, index)
    return index


@compiled
def _assign(p, w, weights, e, workspace, explore, seed, forced, v, b, t, record):
    """The device of op v; -1 if it may not go to the forced one."""
    num_devices, mask = len(e.devices), record.device_mask[b, t]
    possible_devices(p, w, e, v, mask)
    for d in range(num_devices):
        x = record.device_x[b, t, d]
        published_features(w, e, v, d, x)
        workspace.logits[d] = _plc_logit(weights, v, d, x, workspace)
    d = record.device[b, t]
    if not forced:
        d = choose(workspace.logits, mask, num_devices, explore, seed, 2 * t + 1)
    elif d < 0 or d >= num_devices or mask[d] == 0:
        return -1
    record.log_prob[b] += log_prob_of(workspace.logits, mask, num_devices, d)
    return d


@compiled
def play_paper(p, w, weights, e, workspace, explore, seeds_B, forced, record):
    """Play and record episodes.

    explore: choosing.SAMPLE, or the probability of a uniform choice. forced: record.op and
    record.device hold the decisions to take; those that cannot be taken end their episode.
    """
    for b in range(len(seeds_B)):
        reset(p, e)
        workspace.placed[:, :] = np.float32(0.0)
        record.log_prob[b] = 0.0
        for t in range(len(e.ops)):
            index = _select(weights, e, workspace, explore, seeds_B[b], forced, b, t, record)
            d = -1
            if index >= 0:
                v = e.candidates[index]
                d = _assign(
                    p, w, weights, e, workspace, explore, seeds_B[b], forced, v, b, t, record
                )
            if d < 0:
                record.is_possible[b] = False
                break
            record.op[b, t] = v
            record.device[b, t] = d
            for j in range(workspace.placed.shape[1]):
                workspace.placed[d, j] += weights.plc_placed[v, j]
            place(p, w, e, index, d)
