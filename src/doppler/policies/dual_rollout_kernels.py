"""Compiled: episodes of the dual policy.

Dimensions as in dual_rollout.py. Indices: b episode, t step, slot: where a step is recorded, v op,
d device, i position among candidates.
"""

import numpy as np

from doppler.env.episode import NUM_CANDIDATES
from doppler.env.episode_kernels import is_late, place, reset
from doppler.env.features_kernels import (
    device_features,
    open_devices,
    possible_devices,
    sel_features,
)
from doppler.env.heuristic_kernels import (
    bring_earliest_starts_forward,
    close_later_starts,
    largest_b_levels_first,
)
from doppler.env.problem_view import LARGE
from doppler.env.ready_kernels import swap_candidates
from doppler.env.scheduler_terms_kernels import plc_scheduler_terms, sel_scheduler_terms
from doppler.policies.choice_kernels import choose, log_prob_of
from doppler.policies.dual_heads_kernels import add_key, plc_logit, scheduler_logit, sel_logit
from doppler.policies.dual_rollout import (
    MAX_CANDIDATES,
    MAX_CANDIDATES_IN_LARGE,
    NO_ROOM,
    NO_SUCH_CHOICE,
)
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform

# Numbers of an episode's seed from here on say where it explores; those before are its choices.
_NOISE = 1 << 40


@compiled
def _score_candidates(problem, view, weights, episode, buffers, forced, b, t, slot, record):
    """Record the open candidates of a step as ``slot``, and write their logits to the buffers.

    Returns:
        Their number, and the position of the forced one in the list of candidates, or -1.
    """
    index, count, rows = -1, episode.status[NUM_CANDIDATES], record.candidate_ptr[b, slot]
    if not weights.sel_learned:
        count = largest_b_levels_first(view, episode)
    else:
        max_candidates = MAX_CANDIDATES if len(episode.ops) <= LARGE else MAX_CANDIDATES_IN_LARGE
        if count > max_candidates:
            bring_earliest_starts_forward(view, episode, max_candidates)
            count = max_candidates
    if forced:
        for i in range(episode.status[NUM_CANDIDATES]):
            if episode.candidates[i] == record.op[b, t]:
                index = i
        if index >= count and weights.sel_learned and len(episode.ops) > LARGE:
            swap_candidates(episode, index, count - 1)  # it replaces the last of those
            index = count - 1
        elif index >= count:  # not among those: then all are open
            count = episode.status[NUM_CANDIDATES]
    record.candidate_ptr[b, slot + 1] = rows + count
    if rows + count > record.candidate_op.shape[1]:
        return NO_ROOM, index
    terms = record.candidate_terms[b, rows : rows + count]
    sel_scheduler_terms(problem, view, episode, count, terms)
    for i in range(count):
        v = episode.candidates[i]
        x = record.candidate_x[b, rows + i]
        sel_features(problem, view, episode, v, x)
        record.candidate_op[b, rows + i] = v
        logit = sel_logit(weights, v, x, buffers)
        buffers.logits[i] = logit + scheduler_logit(weights.sel_scheduler, terms[i])
    return count, index


@compiled
def _score_devices(problem, view, weights, episode, buffers, v, forced_device, b, slot, record):
    """Record the devices for op v and write their logits; forced_device is -1 if none is forced."""
    num_devices = len(episode.devices)
    mask = record.device_mask[b, slot]
    device_features(problem, view, episode, v, record.device_x[b, slot], mask)
    # A teacher may take another of several equal empty devices, which is the same choice.
    if forced_device >= 0 and mask[forced_device] == 0:
        for other in range(forced_device):
            is_equal = view.device_class[other] == view.device_class[forced_device]
            if is_equal and episode.devices[other].num_ops == 0 and mask[other] != 0:
                mask[forced_device], mask[other] = 1, 0
                break
    if not weights.plc_learned:
        close_later_starts(view, episode, v, forced_device, mask)
    terms = record.device_terms[b, slot]
    plc_scheduler_terms(problem, view, episode, v, mask, terms)
    for d in range(num_devices):
        logit = plc_logit(weights, v, d, record.device_x[b, slot, d], buffers)
        buffers.logits[d] = logit + scheduler_logit(weights.plc_scheduler, terms[d])


@compiled
def _only_device(problem, view, episode, v, mask):
    """The only device to which op v may go, -1 if there are several."""
    open_devices(problem, view, episode, v, mask)
    only = -1
    for d in range(len(mask)):
        if mask[d] != 0:
            if only >= 0:
                return -1
            only = d
    return only


@compiled
def _next_of(returning, episode, b):
    """The position of the candidate that came first in the episode to which episode b returns.

    -1 if that candidate is in the window, where the episode is free.
    """
    first = 0
    for i in range(1, episode.status[NUM_CANDIDATES]):
        if returning.rank[episode.candidates[i]] < returning.rank[episode.candidates[first]]:
            first = i
    rank = returning.rank[episode.candidates[first]]
    return -1 if returning.window[b, 0] <= rank < returning.window[b, 1] else first


@compiled
def _explores(returning, explore, seed, draw, b):
    """How to choose where episode b is free: about one choice per window is uniform.

    Otherwise most short windows would be played as before, and their makespan is known already.
    """
    length = returning.window[b, 1] - returning.window[b, 0]
    if returning.window[b, 0] >= 0 and uniform(seed, _NOISE + draw) * length < 1.0:
        return 1.0
    return explore


@compiled
def _free_candidates(returning, episode, buffers, count, b):
    """Select the candidates in the window from the first ``count``; all if none is in it."""
    some = False
    for i in range(count):
        rank = returning.rank[episode.candidates[i]]
        is_free = returning.window[b, 0] <= rank < returning.window[b, 1]
        buffers.free[i] = 1 if is_free else 0
        some = some or is_free
    if not some:
        buffers.free[:count] = 1


@compiled
def begin(problem, episode, b, record):
    """Begin an episode.

    Args:
        problem: ProblemArrays.
        episode: its state, episode.Episode.
        b: number of the episode.
        record: dual_rollout.Record, changed.

    Returns:
        The number of recorded candidates: 0.
    """
    reset(problem, episode)
    record.log_prob[b] = 0.0
    record.candidate_ptr[b, 0] = 0
    return 0


@compiled
def _can_repeat(problem, view, episode, index, d, b, slot, record):
    """Whether the candidate at this position may go to device d; masks all other devices."""
    if record.candidate_ptr[b, slot] == record.candidate_op.shape[1]:
        return False
    mask = record.device_mask[b, slot]
    possible_devices(problem, view, episode, episode.candidates[index], mask)
    can = mask[d] != 0
    mask[:] = 0
    mask[d] = 1
    return can


@compiled
def _repeat(problem, view, weights, episode, buffers, index, d, b, t, slot, record):
    """Put the candidate at this position on device d; return the number of recorded candidates.

    It is recorded as the only candidate with one device: nothing was decided, so log-probability
    and entropy are 0.
    """
    v, row = episode.candidates[index], record.candidate_ptr[b, slot]
    record.op[b, t], record.device[b, t] = v, d
    record.candidate_op[b, row] = v
    record.candidate_x[b, row] = 0.0
    record.candidate_terms[b, row] = 0.0
    record.chosen[b, slot] = row
    record.candidate_ptr[b, slot + 1] = row + 1
    record.device_x[b, slot] = 0.0
    record.device_terms[b, slot] = 0.0
    place(problem, view, episode, index, d)
    add_key(weights, v, d, buffers)
    return row + 1


@compiled
def step(problem, view, weights, episode, buffers, explore, seed, forced, b, t, returning, record):
    """Take and record step t of episode b; return a code as `play` does."""
    num_devices = len(episode.devices)
    logits, slot = buffers.logits, record.num_before[b, t]
    if not forced and returning.window[b, 0] >= 0:
        index = _next_of(returning, episode, b)
        if index >= 0:
            d = returning.device[episode.candidates[index]]
            if _can_repeat(problem, view, episode, index, d, b, slot, record):
                return _repeat(
                    problem, view, weights, episode, buffers, index, d, b, t, slot, record
                )
    count, index = _score_candidates(
        problem, view, weights, episode, buffers, forced, b, t, slot, record
    )
    if count == NO_ROOM:
        return NO_ROOM
    if forced and index < 0:
        return NO_SUCH_CHOICE
    if not forced:
        allowed = buffers.allowed
        if returning.window[b, 0] >= 0:
            _free_candidates(returning, episode, buffers, count, b)
            allowed = buffers.free
        explores = _explores(returning, explore, seed, 2 * t, b)
        index = choose(logits, allowed, count, explores, seed, 2 * t)
    record.log_prob[b] += log_prob_of(logits, buffers.allowed, count, index)
    v = episode.candidates[index]
    record.op[b, t] = v
    record.chosen[b, slot] = record.candidate_ptr[b, slot] + index

    d = record.device[b, t] if forced else -1
    if forced and (d < 0 or d >= num_devices or problem.op_seconds[v, d] == np.inf):
        return NO_SUCH_CHOICE
    mask, is_recorded = record.device_mask[b, slot], record.num_before[b, t + 1] > slot
    if not (forced or is_recorded):
        d = _only_device(problem, view, episode, v, mask)
    if forced or d < 0:
        _score_devices(problem, view, weights, episode, buffers, v, d, b, slot, record)
        if forced and mask[d] == 0:
            return NO_SUCH_CHOICE
        if not forced:
            draw = 2 * t + 1
            explores = _explores(returning, explore, seed, draw, b)
            d = choose(logits, mask, num_devices, explores, seed, draw)
        record.log_prob[b] += log_prob_of(logits, mask, num_devices, d)
    record.device[b, t] = d
    place(problem, view, episode, index, d)
    add_key(weights, v, d, buffers)
    return record.candidate_ptr[b, slot + 1]


@compiled
def play(problem, view, weights, episode, buffers, explore, seed, forced, b, returning, record):
    """Play episode b and record it.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        weights: HeadWeights.
        episode: its state, episode.Episode.
        buffers: HeadBuffers.
        explore: SAMPLE, or the probability of a uniform choice.
        seed: of the episode.
        forced: whether record.op and record.device hold the decisions to take.
        b: number of the episode.
        returning: dual_rollout.Returning, of these episodes.
        record: dual_rollout.Record, filled in.

    Returns:
        The number of recorded candidates, NO_ROOM, or NO_SUCH_CHOICE where a forced decision was
        not open.
    """
    rows = begin(problem, episode, b, record)
    buffers.placed_keys[:] = 0.0
    for t in range(len(episode.ops)):
        if is_late(view, episode):
            _place_rest(problem, view, episode, b, t, record)
            break
        rows = step(
            problem,
            view,
            weights,
            episode,
            buffers,
            explore,
            seed,
            forced,
            b,
            t,
            returning,
            record,
        )
        if rows < 0:
            break
    return rows


@compiled
def _place_rest(problem, view, episode, b, first, record):
    """Place all ops from step ``first`` on anywhere, because the episode is not used."""
    mask = record.device_mask[b, 0]
    for t in range(first, len(episode.ops)):
        index = episode.status[NUM_CANDIDATES] - 1
        v, d = episode.candidates[index], 0
        open_devices(problem, view, episode, v, mask)
        while mask[d] == 0:
            d += 1
        record.op[b, t] = v
        record.device[b, t] = d
        place(problem, view, episode, index, d)


@compiled
def play_batch(
    problem, view, weights, episode, buffers, explore, seeds_B, forced, returning, record, rows_B
):
    """Play the episodes of one thread, as `play`.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        weights: HeadWeights.
        episode: its state, episode.Episode.
        buffers: HeadBuffers.
        explore: SAMPLE, or the probability of a uniform choice.
        seeds_B: of the episodes.
        forced: whether the record holds the decisions to take.
        returning: dual_rollout.Returning, of these episodes.
        record: dual_rollout.Record, filled in.
        rows_B: what `play` returns of each, filled in.
    """
    for b in range(len(seeds_B)):
        rows_B[b] = play(
            problem,
            view,
            weights,
            episode,
            buffers,
            explore,
            seeds_B[b],
            forced,
            b,
            returning,
            record,
        )
