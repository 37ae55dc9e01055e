"""A ladder of searches: each level goes on from what the ones below have found, at a higher price.

The lower bound is a certificate that needs no level at all: who has reached it can stop.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.baselines import LowerBound, QueuedETF, lower_bound
from doppler.episode import make_view, mergings
from doppler.policies import Policy
from doppler.problem import Placement, Problem
from doppler.search import (
    BestSoFar,
    Episodes,
    GreedyEpisode,
    PlaceOnce,
    SearchStep,
    search_settings,
)
from doppler.system import System

# Executions, of a level's, that annealing on estimates chooses, and its steps before each: so a level
# takes some times as long as the one below.
_FEW, _MORE = (8, 1_000), (32, 2_000)


@dataclass(frozen=True, kw_only=True)
class Level:
    """A search that begins with the best of the levels below.

    evaluations: executions in all, those of the levels below included. make: its steps.
    """

    name: str
    evaluations: int
    make: Callable[[DictConfig, Policy, Problem], Sequence[SearchStep]]


def _etf(settings: DictConfig, policy: Policy, problem: Problem) -> Sequence[SearchStep]:
    return [PlaceOnce(baseline=QueuedETF(evaluations=1))]


def _at_once(settings: DictConfig, policy: Policy, problem: Problem) -> Sequence[SearchStep]:
    return [GreedyEpisode(policy=policy, views=mergings(make_view(problem)))]


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
    Level(name="100000", evaluations=100_000, make=_anneal),
)


class Climb:
    """One problem on its way up: what was found so far, and the seconds that it took.

    system: what executes. policy: of the second and third level. levels: from the cheapest on.
    bound: what no placement undercuts. found_s, took_s: makespan and seconds of each level so far.
    """

    def __init__(
        self,
        problem: Problem,
        system: System,
        policy: Policy,
        *,
        seed: int = 0,
        levels: Sequence[Level] = LEVELS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.problem = problem
        self.levels = levels
        self.bound: LowerBound = lower_bound(problem, streams=system.streams)
        self.found_s: list[float] = []
        self.took_s: list[float] = []
        self._system = system
        self._clock = clock
        self._policy = policy
        self._settings = search_settings()
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._best: BestSoFar | None = None

    @property
    def height(self) -> int:
        """Levels gone so far."""
        return len(self.found_s)

    @property
    def seconds(self) -> float:
        """What they took."""
        return sum(self.took_s)

    @property
    def best(self) -> BestSoFar:
        """The best placement so far, and the executions used."""
        assert self._best is not None, "no level yet"
        return self._best

    @property
    def placement(self) -> Placement | None:
        """The best one, if any fits."""
        return self.best.placement

    def go_on(self) -> float:
        """One level more; returns the makespan that is the best then, in seconds."""
        level, begin_s = self.levels[self.height], self._clock()
        with self._system.open(self.problem) as session:
            before = self._best
            self._best = BestSoFar(
                session=session,
                confirmations=self._settings.confirmations,
                seed=self._seed,
                evaluations=0 if before is None else before.evaluations,
            )
            if before is not None:
                self._best.found = before.found
            for step in level.make(self._settings, self._policy, self.problem):
                left = max(1, level.evaluations - self._best.evaluations)
                step.search(self._best, left, self._rng)
        self.took_s.append(self._clock() - begin_s)
        self.found_s.append(self._best.seconds)
        return self._best.seconds
