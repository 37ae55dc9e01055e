"""Compiled: episodes of the paper's policy.

Dimensions as in paper_rollout.py. Indices: b episode, t step, v op, d device, i position among
candidates or embedded unit, j hidden unit of the head, f feature; x: features, h: value of a unit.
"""

import numpy as np

from doppler.env.episode import NUM_CANDIDATES
from doppler.env.episode_kernels import place, reset
from doppler.env.features_kernels import possible_devices, published_features
from doppler.policies.choice_kernels import choose, log_prob_of
from doppler.policies.paper_rollout import NUM_FEATURES
from doppler.support.compiled import compiled

LEAKINESS = np.float32(0.1)


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
def _select(weights, episode, workspace, explore, seed, forced, b, t, record):
    """The position of step t's op among the candidates; -1 if a forced op is not a candidate."""
    count, index = episode.status[NUM_CANDIDATES], -1
    for i in range(count):
        workspace.logits[i] = weights.sel_logit[episode.candidates[i]]
        if forced and episode.candidates[i] == record.op[b, t]:
            index = i
    if not forced:
        index = choose(workspace.logits, workspace.allowed, count, explore, seed, 2 * t)
    if index >= 0:
        record.log_prob[b] += log_prob_of(workspace.logits, workspace.allowed, count, index)
    return index


@compiled
def _assign(problem, view, weights, episode, workspace, explore, seed, forced, v, b, t, record):
    """The device of op v; -1 if it may not go to the forced device."""
    num_devices, mask = len(episode.devices), record.device_mask[b, t]
    possible_devices(problem, view, episode, v, mask)
    for d in range(num_devices):
        x = record.device_x[b, t, d]
        published_features(view, episode, v, d, x)
        workspace.logits[d] = _plc_logit(weights, v, d, x, workspace)
    d = record.device[b, t]
    if not forced:
        d = choose(workspace.logits, mask, num_devices, explore, seed, 2 * t + 1)
    elif d < 0 or d >= num_devices or mask[d] == 0:
        return -1
    record.log_prob[b] += log_prob_of(workspace.logits, mask, num_devices, d)
    return d


@compiled
def play_paper(problem, view, weights, episode, workspace, explore, seeds_B, forced, record):
    """Play and record episodes.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        weights: PaperWeights.
        episode: its state, episode.Episode.
        workspace: Workspace.
        explore: SAMPLE, or the probability of a uniform choice.
        seeds_B: of the episodes.
        forced: whether record.op and record.device hold the decisions to take; those that cannot be
            taken end their episode.
        record: PaperRecord, filled in.
    """
    for b in range(len(seeds_B)):
        reset(problem, episode)
        workspace.placed[:, :] = np.float32(0.0)
        record.log_prob[b] = 0.0
        for t in range(len(episode.ops)):
            index = _select(weights, episode, workspace, explore, seeds_B[b], forced, b, t, record)
            d = -1
            if index >= 0:
                v = episode.candidates[index]
                d = _assign(
                    problem,
                    view,
                    weights,
                    episode,
                    workspace,
                    explore,
                    seeds_B[b],
                    forced,
                    v,
                    b,
                    t,
                    record,
                )
            if d < 0:
                record.is_possible[b] = False
                break
            record.op[b, t] = v
            record.device[b, t] = d
            for j in range(workspace.placed.shape[1]):
                workspace.placed[d, j] += weights.plc_placed[v, j]
            place(problem, view, episode, index, d)
