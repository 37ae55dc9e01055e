"""A ladder of searches: each level goes on from what those below found, at a higher price."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.baselines import QueuedETF
from doppler.episode import make_view
from doppler.policies import Policy
from doppler.problem import Problem
from doppler.search import (
    BestSoFar,
    Episodes,
    GreedyEpisode,
    PlaceOnce,
    SearchStep,
    search_settings,
)

# Executions, of a level's, that annealing on estimates chooses, and its steps before each: so every
# level takes some times as long as the one below.
_FEW, _MORE = (8, 1_000), (16, 1_000)


@dataclass(frozen=True, kw_only=True)
class Level:
    """A search that begins with the best of the levels below.

    evaluations: executions in all, those of the levels below included. make: its steps.
    """

    name: str
    evaluations: int
    make: Callable[[DictConfig, Policy, Problem], Sequence[SearchStep]]


def _etf(settings: DictConfig, policy: Policy, problem: Problem) -> Sequence[SearchStep]:
    once: Any = QueuedETF(evaluations=1)
    return [PlaceOnce(baseline=once)]


def _at_once(settings: DictConfig, policy: Policy, problem: Problem) -> Sequence[SearchStep]:
    return [GreedyEpisode.of(policy, make_view(problem))]


def _estimates(
    settings: DictConfig, policy: Policy, problem: Problem, at_most: int, steps: int
) -> Sequence[SearchStep]:
    """Drafts of the policy and of list schedulers, annealed on estimates; then annealing."""
    view = make_view(problem)
    drafts = [Episodes(policy=policy, view=view, merged=merged) for merged in (False, True)]
    others = instantiate(settings.drafts, _convert_="all")
    make = instantiate(settings.estimates)
    estimates = make(drafts=[*drafts, *others], at_most=at_most, steps=steps)
    return [estimates, instantiate(settings.anneal)]


def _anneal(settings: DictConfig, policy: Policy, problem: Problem) -> Sequence[SearchStep]:
    return [instantiate(settings.anneal)]


LEVELS = (
    Level(name="etf_queued", evaluations=1, make=_etf),
    Level(name="policy", evaluations=2, make=_at_once),
    Level(name="64", evaluations=64, make=partial(_estimates, at_most=_FEW[0], steps=_FEW[1])),
    Level(
        name="1000", evaluations=1_000, make=partial(_estimates, at_most=_MORE[0], steps=_MORE[1])
    ),
    Level(name="10000", evaluations=10_000, make=_anneal),
    Level(name="100000", evaluations=100_000, make=_anneal),
)


class Climb:
    """One problem on its way up: what was found so far, and the seconds that it took.

    best: of a session on the problem; counts what is executed. policy: of the second level and the
    third. levels: from the cheapest on. found_s, took_s: makespan and seconds of each level so far.
    """

    def __init__(
        self,
        best: BestSoFar,
        policy: Policy,
        rng: np.random.Generator,
        *,
        levels: Sequence[Level] = LEVELS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.levels = levels
        self.found_s: list[float] = []
        self.took_s: list[float] = []
        self._best, self._policy, self._rng, self._clock = best, policy, rng, clock
        self._settings = search_settings()
        self._before = best.evaluations

    def go_on(self) -> None:
        """One level more."""
        level, begin_s = self.levels[len(self.found_s)], self._clock()
        for step in level.make(self._settings, self._policy, self._best.session.problem):
            left = level.evaluations - (self._best.evaluations - self._before)
            step.search(self._best, max(self._best.num_confirming, left), self._rng)
        self.took_s.append(self._clock() - begin_s)
        self.found_s.append(self._best.seconds)
