"""Compiled episodes of the dual policy: the choices, and the record of what was seen.

Shape suffixes: B episodes, V ops and steps, D devices, N recorded candidates of all steps of one
episode, S hidden of SEL, P hidden of PLC, F features.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.env.features import (
    NUM_DEVICE_FEATURES,
    NUM_DEVICE_GROUP_FEATURES,
    NUM_SEL_FEATURES,
    NUM_SEL_GROUP_FEATURES,
    device_features,
    open_devices,
    sel_features,
)
from doppler.env.heuristic import (
    bring_earliest_starts_forward,
    close_later_starts,
    largest_b_levels_first,
)
from doppler.env.problem_view import LARGE, ProblemView
from doppler.env.process import NUM_CANDIDATES, is_late, place, reset
from doppler.env.ready import swap_candidates
from doppler.env.scheduler_terms import (
    NUM_PLC_TERMS,
    NUM_SEL_TERMS,
    plc_scheduler_terms,
    sel_scheduler_terms,
)
from doppler.policies.choosing import choose, log_prob_of
from doppler.policies.dual_heads import Float32, plc_logit, scheduler_logit, sel_logit
from doppler.support.compiled import compiled

# Results of an episode that was not played to its end.
NO_ROOM, NO_SUCH_CHOICE = -1, -2
# SEL looks at no more candidates than these, those that can start earliest: where thousands of ops
# are ready, recording them all would take gigabytes. In large graphs at fewer: makespans of 3,000
# and 10,000 ops were the same with 16 and with 64, to 0.3%.
MOST_CANDIDATES, MOST_IN_LARGE = 64, 32


class Record(NamedTuple):
    """What the policy saw and chose in each episode, for the replay with gradients.

    Of large graphs it is what S of the steps saw; so much for one step more is scratch.
    """

    op: NDArray[np.int64]  # [B, V]
    device: NDArray[np.int64]  # [B, V]
    log_prob: NDArray[np.float64]  # [B] of all steps
    step: NDArray[np.int64]  # [B, S] the steps recorded, one of each of `parts_of_episode`
    num_before: NDArray[np.int64]  # [B, V + 1] how many of them come before each step
    candidate_ptr: NDArray[np.int64]  # [B, S + 1] candidates of the s-th are rows ptr[s]:ptr[s + 1]
    candidate_op: NDArray[np.int64]  # [B, N]
    candidate_x: Float32  # [B, N, F]; of merged views with the features of groups
    candidate_terms: Float32  # [B, N, X]
    chosen: NDArray[np.int64]  # [B, S] the row of the chosen candidate
    device_x: Float32  # [B, S, D, F]; the same
    device_terms: Float32  # [B, S, D, X]
    device_mask: NDArray[np.int64]  # [B, S, D]


def parts_of_episode(num_ops: int, num_steps: int) -> NDArray[np.int64]:
    """Where each of so many equal parts of an episode begins, and where the last ends."""
    return np.arange(num_steps + 1) * num_ops // max(1, num_steps)


def make_record(
    num_episodes: int, view: ProblemView, num_steps: int, room: int, rng: np.random.Generator
) -> Record:
    """Space for so many steps of the given number of episodes, ``room`` candidates for each step.

    rng: draws the steps, one of each part of an episode, so that all are as likely.
    """
    num_ops, num_devices = view.problem.num_ops, view.problem.num_devices
    num_seen, num_seen_of_devices = NUM_SEL_FEATURES, NUM_DEVICE_FEATURES
    if view.is_merged:
        num_seen += NUM_SEL_GROUP_FEATURES
        num_seen_of_devices += NUM_DEVICE_GROUP_FEATURES
    begin_S = parts_of_episode(num_ops, num_steps)
    step_BS = np.broadcast_to(begin_S[:-1], (num_episodes, num_steps)).copy()
    if num_steps < num_ops:
        step_BS += rng.integers(np.diff(begin_S), size=step_BS.shape)
    num_before = np.zeros((num_episodes, num_ops + 1), np.int64)
    np.put_along_axis(num_before, step_BS + 1, 1, axis=1)
    np.cumsum(num_before, axis=1, out=num_before)
    slots = num_steps + (num_steps < num_ops)
    shape, room = (num_episodes, slots), room * slots
    return Record(
        op=np.empty((num_episodes, num_ops), np.int64),
        device=np.empty((num_episodes, num_ops), np.int64),
        log_prob=np.zeros(num_episodes),
        step=step_BS,
        num_before=num_before,
        candidate_ptr=np.zeros((num_episodes, slots + 1), np.int64),
        candidate_op=np.empty((num_episodes, room), np.int64),
        candidate_x=np.empty((num_episodes, room, num_seen), np.float32),
        candidate_terms=np.empty((num_episodes, room, NUM_SEL_TERMS), np.float32),
        chosen=np.empty(shape, np.int64),
        device_x=np.empty((*shape, num_devices, num_seen_of_devices), np.float32),
        device_terms=np.empty((*shape, num_devices, NUM_PLC_TERMS), np.float32),
        device_mask=np.empty((*shape, num_devices), np.int64),
    )


def record_of(record: Record, episodes: slice) -> Record:
    """The part of a record that belongs to some of its episodes, sharing memory with it."""
    return Record._make(array[episodes] for array in record)


@compiled
def _candidates(p, w, weights, e, scratch, forced, b, t, s, record):
    """Record the open candidates, their logits in scratch; of recorded step ``s``, or before it.

    Returns their number, and the place of the forced one in the list of candidates, or -1.
    """
    index, count, rows = -1, e.status[NUM_CANDIDATES], record.candidate_ptr[b, s]
    if not weights.sel_learned:
        count = largest_b_levels_first(w, e)
    else:
        most = MOST_CANDIDATES if len(e.ops) <= LARGE else MOST_IN_LARGE
        if count > most:
            bring_earliest_starts_forward(w, e, most)
            count = most
    if forced:
        for i in range(e.status[NUM_CANDIDATES]):
            if e.candidates[i] == record.op[b, t]:
                index = i
        if index >= count and weights.sel_learned and len(e.ops) > LARGE:
            swap_candidates(e, index, count - 1)  # it takes the place of the last of those
            index = count - 1
        elif index >= count:  # none of those: then all are open
            count = e.status[NUM_CANDIDATES]
    record.candidate_ptr[b, s + 1] = rows + count
    if rows + count > record.candidate_op.shape[1]:
        return NO_ROOM, index
    terms = record.candidate_terms[b, rows : rows + count]
    sel_scheduler_terms(p, w, e, count, terms)
    for i in range(count):
        v = e.candidates[i]
        x = record.candidate_x[b, rows + i]
        sel_features(p, w, e, v, x)
        record.candidate_op[b, rows + i] = v
        logit = sel_logit(weights, v, x, scratch)
        scratch.logits[i] = logit + scheduler_logit(weights.sel_scheduler, terms[i])
    return count, index


@compiled
def _devices(p, w, weights, e, scratch, v, taken, b, s, record):
    """Record the devices for op v, their logits in scratch; ``taken`` is the forced one, or -1."""
    num_devices = len(e.devices)
    mask = record.device_mask[b, s]
    device_features(p, w, e, v, record.device_x[b, s], mask)
    # A teacher may take another of several equal empty devices: it is the same choice.
    if taken >= 0 and mask[taken] == 0:
        for other in range(taken):
            is_equal = w.device_class[other] == w.device_class[taken]
            if is_equal and e.devices[other].num_ops == 0 and mask[other] != 0:
                mask[taken], mask[other] = 1, 0
                break
    if not weights.plc_learned:
        close_later_starts(w, e, v, taken, mask)
    terms = record.device_terms[b, s]
    plc_scheduler_terms(p, w, e, v, mask, terms)
    for d in range(num_devices):
        logit = plc_logit(weights, v, d, record.device_x[b, s, d], scratch)
        scratch.logits[d] = logit + scheduler_logit(weights.plc_scheduler, terms[d])


@compiled
def _only_device(p, w, e, v, mask):
    """The device to which op v must go, -1 if there are several."""
    open_devices(p, w, e, v, mask)
    only = -1
    for d in range(len(mask)):
        if mask[d] != 0:
            if only >= 0:
                return -1
            only = d
    return only


@compiled
def begin(p, e, b, record):
    """Begin episode b; returns its number of recorded candidates."""
    reset(p, e)
    record.log_prob[b] = 0.0
    record.candidate_ptr[b, 0] = 0
    return 0


@compiled
def step(p, w, weights, e, scratch, explore, seed, forced, b, t, record):
    """Take and record step t of episode b; returns what `play` does."""
    num_devices = len(e.devices)
    logits, s = scratch.logits, record.num_before[b, t]
    count, index = _candidates(p, w, weights, e, scratch, forced, b, t, s, record)
    if count == NO_ROOM:
        return NO_ROOM
    if forced and index < 0:
        return NO_SUCH_CHOICE
    if not forced:
        index = choose(logits, scratch.allowed, count, explore, seed, 2 * t)
    record.log_prob[b] += log_prob_of(logits, scratch.allowed, count, index)
    v = e.candidates[index]
    record.op[b, t] = v
    record.chosen[b, s] = record.candidate_ptr[b, s] + index

    d = record.device[b, t] if forced else -1
    if forced and (d < 0 or d >= num_devices or p.op_seconds[v, d] == np.inf):
        return NO_SUCH_CHOICE
    mask, is_recorded = record.device_mask[b, s], record.num_before[b, t + 1] > s
    if not (forced or is_recorded):
        d = _only_device(p, w, e, v, mask)
    if forced or d < 0:
        _devices(p, w, weights, e, scratch, v, d, b, s, record)
        if forced and mask[d] == 0:
            return NO_SUCH_CHOICE
        if not forced:
            d = choose(logits, mask, num_devices, explore, seed, 2 * t + 1)
        record.log_prob[b] += log_prob_of(logits, mask, num_devices, d)
    record.device[b, t] = d
    place(p, w, e, index, d)
    return record.candidate_ptr[b, s + 1]


@compiled
def play(p, w, weights, e, scratch, explore, seed, forced, b, record):
    """Play episode b and record it.

    explore: SAMPLE, or the probability of a uniform choice. forced: record.op and record.device
    hold the decisions to take. Returns the number of recorded candidates, NO_ROOM, or
    NO_SUCH_CHOICE where a forced decision was not open.
    """
    rows = begin(p, e, b, record)
    for t in range(len(e.ops)):
        if is_late(w, e):
            _end(p, w, e, b, t, record)
            break
        rows = step(p, w, weights, e, scratch, explore, seed, forced, b, t, record)
        if rows < 0:
            break
    return rows


@compiled
def _end(p, w, e, b, first, record):
    """Place what is left from step ``first`` on anywhere: the episode is of no use."""
    mask = record.device_mask[b, 0]
    for t in range(first, len(e.ops)):
        index = e.status[NUM_CANDIDATES] - 1
        v, d = e.candidates[index], 0
        open_devices(p, w, e, v, mask)
        while mask[d] == 0:
            d += 1
        record.op[b, t] = v
        record.device[b, t] = d
        place(p, w, e, index, d)


@compiled
def play_batch(p, w, weights, e, scratch, explore, seeds_B, forced, record, rows_B):
    """Play the episodes of one thread, as `play`; rows_B takes their results."""
    for b in range(len(seeds_B)):
        rows_B[b] = play(p, w, weights, e, scratch, explore, seeds_B[b], forced, b, record)
