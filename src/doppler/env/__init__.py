"""The placement process: what is seen of a problem, candidates, transitions, features."""

from doppler.env.episode import Episode, make_episode
from doppler.env.features import (
    DEVICE_FEATURES,
    DEVICE_GROUP_FEATURES,
    SEL_FEATURES,
    SEL_GROUP_FEATURES,
)
from doppler.env.heuristic import advice
from doppler.env.merging import (
    MANY_OPS,
    by_level,
    enough_s,
    merged,
    merged_at_random,
    mergings,
    next_to,
    num_to_play,
    under_limit,
    with_room,
    without_waiting,
)
from doppler.env.problem_view import OP_FEATURES, ProblemView, make_view

__all__ = [
    "DEVICE_FEATURES",
    "DEVICE_GROUP_FEATURES",
    "MANY_OPS",
    "OP_FEATURES",
    "SEL_FEATURES",
    "SEL_GROUP_FEATURES",
    "Episode",
    "ProblemView",
    "advice",
    "by_level",
    "enough_s",
    "make_episode",
    "make_view",
    "merged",
    "merged_at_random",
    "mergings",
    "next_to",
    "num_to_play",
    "under_limit",
    "with_room",
    "without_waiting",
]
