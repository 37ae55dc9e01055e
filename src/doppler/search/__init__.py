"""One search engine: steps share a budget, and each starts from the best placement so far."""

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
from doppler.search.estimating import AnnealOnEstimates, Drafts, Episodes
from doppler.search.evaluator import NO_PLACEMENT, Evaluator, ScoredPlacement, confirmations_within
from doppler.search.greedy import GREEDY, GreedyEpisode, host_uses
from doppler.search.steps import (
    EPISODE,
    MERGED_EPISODE,
    RETURNED,
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
    "NO_EFFORT",
    "NO_PLACEMENT",
    "RETURNED",
    "AnnealFromBest",
    "AnnealOnEstimates",
    "Budget",
    "Combined",
    "DealBlocks",
    "Drafts",
    "Effort",
    "Episodes",
    "Evaluator",
    "GreedyEpisode",
    "InParts",
    "KeepToHosts",
    "PlaceAgain",
    "PlaceOnce",
    "ScoredPlacement",
    "SearchStep",
    "confirmations_within",
    "estimates_step",
    "host_uses",
    "load_policy",
    "methods",
    "policy_steps",
    "search",
    "search_settings",
    "seeded_generator",
    "steps_of",
    "suited",
]
