"""The placement process: what is seen of a problem, candidates, transitions, features."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from doppler.env.placement_env import PlacementEnv

__all__ = [
    "DEVICE_FEATURES",
    "DEVICE_GROUP_FEATURES",
    "MANY_OPS",
    "OP_FEATURES",
    "SEL_FEATURES",
    "SEL_GROUP_FEATURES",
    "Episode",
    "PlacementEnv",
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


def __getattr__(name: str) -> Any:
    """Import `PlacementEnv` when it is first used, because it needs Gymnasium."""
    if name != "PlacementEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from doppler.env.placement_env import PlacementEnv
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise ImportError("PlacementEnv needs Gymnasium: pip install '.[gym]'") from None
    return PlacementEnv
