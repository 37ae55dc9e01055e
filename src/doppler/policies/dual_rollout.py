"""The record of episodes of the dual policy: what it saw and chose, for the replay.

Shape suffixes: B episodes, V ops and steps, D devices, N recorded candidates of all steps of one
episode, S recorded steps, F features, X terms of the list scheduler.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.env.features import (
    NUM_DEVICE_FEATURES,
    NUM_DEVICE_GROUP_FEATURES,
    NUM_SEL_FEATURES,
    NUM_SEL_GROUP_FEATURES,
)
from doppler.env.problem_view import ProblemView
from doppler.env.scheduler_terms import NUM_PLC_TERMS, NUM_SEL_TERMS
from doppler.policies.dual_heads_kernels import Float32

# Return codes of an episode that was not played to its end.
NO_ROOM, NO_SUCH_CHOICE = -1, -2
# SEL looks at no more candidates than this, those that can start earliest: if thousands of ops are
# ready, recording them all would take gigabytes. In large graphs it looks at fewer: with 3,000 and
# 10,000 ops, makespans with 16 and with 64 candidates were equal to 0.3%.
MAX_CANDIDATES, MAX_CANDIDATES_IN_LARGE = 64, 32


class Returning(NamedTuple):
    """Decisions that episodes repeat, except for a window of steps in which the policy decides.

    Ops are taken in the order of the decisions, each to its device. When an op of the window is
    next, the policy chooses one of the window's ops and its device. It also decides if an op's
    device has no room left.
    """

    rank: NDArray[np.int64]  # [V] the step at which each op was placed
    device: NDArray[np.int64]  # [V] of each op
    window: NDArray[np.int64]  # [B, 2] the first free step, and the first one after the window


def free_everywhere(num_episodes: int, num_ops: int) -> Returning:
    """Repeat nothing: all steps are free."""
    nothing = np.zeros(num_ops, np.int64)
    return Returning(nothing, nothing, np.tile(np.array([-1, num_ops]), (num_episodes, 1)))


class Record(NamedTuple):
    """What the policy saw and chose in each episode, for the replay with gradients.

    On large graphs only S of the steps are recorded. Space for one more step is scratch.
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
    """Return where equal parts of an episode begin, and where the last one ends.

    Args:
        num_ops: steps of the episode.
        num_steps: number of parts.
    """
    return np.arange(num_steps + 1) * num_ops // max(1, num_steps)


def make_record(
    num_episodes: int, view: ProblemView, num_steps: int, capacity: int, rng: np.random.Generator
) -> Record:
    """Allocate a record.

    Args:
        num_episodes: B.
        view: the problem.
        num_steps: S, recorded steps per episode.
        capacity: candidates per step.
        rng: draws the recorded steps, one from each part of an episode, so that all are equally
            likely.
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
    shape, capacity = (num_episodes, slots), capacity * slots
    return Record(
        op=np.empty((num_episodes, num_ops), np.int64),
        device=np.empty((num_episodes, num_ops), np.int64),
        log_prob=np.zeros(num_episodes),
        step=step_BS,
        num_before=num_before,
        candidate_ptr=np.zeros((num_episodes, slots + 1), np.int64),
        candidate_op=np.empty((num_episodes, capacity), np.int64),
        candidate_x=np.empty((num_episodes, capacity, num_seen), np.float32),
        candidate_terms=np.empty((num_episodes, capacity, NUM_SEL_TERMS), np.float32),
        chosen=np.empty(shape, np.int64),
        device_x=np.empty((*shape, num_devices, num_seen_of_devices), np.float32),
        device_terms=np.empty((*shape, num_devices, NUM_PLC_TERMS), np.float32),
        device_mask=np.empty((*shape, num_devices), np.int64),
    )


def record_of(record: Record, episodes: slice) -> Record:
    """Return the part of a record that belongs to some episodes, sharing memory with it.

    Args:
        record: of all episodes.
        episodes: to select.
    """
    return Record._make(array[episodes] for array in record)
