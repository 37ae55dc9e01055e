"""One search engine under one budget: steps from the best placement so far on."""

from doppler.search.best_so_far import NOTHING, BestSoFar, Found, confirmations_within
from doppler.search.combined import Combined, suited
from doppler.search.configured import (
    estimates_step,
    load_policy,
    methods,
    policy_steps,
    search_settings,
    steps_of,
)
from doppler.search.effort import NO_EFFORT, Effort, seeded_generator
from doppler.search.engine import Budget, SearchStep, search
from doppler.search.estimating import AnnealEstimates, Drafts, Episodes
from doppler.search.greedy import GREEDY, GreedyEpisode, ways_told
from doppler.search.steps import (
    EPISODE,
    MERGED_EPISODE,
    AnnealFromBest,
    DealBlocks,
    InParts,
    KeepToHosts,
    PlaceAgain,
    PlaceOnce,
)

__all__ = [
    "EPISODE",
    "GREEDY",
    "MERGED_EPISODE",
    "NOTHING",
    "NO_EFFORT",
    "AnnealEstimates",
    "AnnealFromBest",
    "BestSoFar",
    "Budget",
    "Combined",
    "DealBlocks",
    "Drafts",
    "Effort",
    "Episodes",
    "Found",
    "GreedyEpisode",
    "InParts",
    "KeepToHosts",
    "PlaceAgain",
    "PlaceOnce",
    "SearchStep",
    "confirmations_within",
    "estimates_step",
    "load_policy",
    "methods",
    "policy_steps",
    "search",
    "search_settings",
    "seeded_generator",
    "steps_of",
    "suited",
    "ways_told",
]
