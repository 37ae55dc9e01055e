"""The placement process: what is seen of a problem, candidates, transitions, features."""

from doppler.episode.links import estimated_makespans
from doppler.episode.merging import merged, merged_at_random
from doppler.episode.process import DEVICE_FEATURES, SEL_FEATURES, Episode, make_episode
from doppler.episode.view import OP_FEATURES, View, make_view

__all__ = [
    "DEVICE_FEATURES",
    "OP_FEATURES",
    "SEL_FEATURES",
    "Episode",
    "View",
    "estimated_makespans",
    "make_episode",
    "make_view",
    "merged",
    "merged_at_random",
]
