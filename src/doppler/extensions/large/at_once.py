"""A policy's greedy episode on a graph of thousands of ops, as fast as a list scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from doppler.baselines import ETF, HEFT
from doppler.baselines.hosts import using_hosts
from doppler.env import make_view, mergings, num_to_play
from doppler.extensions.large.windows import AnnealWindows
from doppler.policies import Policy
from doppler.problem import Problem
from doppler.search import (
    AnnealFromBest,
    DealBlocks,
    Evaluator,
    GreedyEpisode,
    PlaceOnce,
    SearchStep,
    host_uses,
    load_policy,
)
from doppler.support.options import Natural, Share, checked


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class AtOnce:
    """A greedy episode of a policy for one way to use hosts (baselines/hosts.py).

    The policy's view of the problem is made when the step begins, because on a large graph that
    takes as long as a list scheduler.

    Attributes:
        policy: that places the ops.
        way: number of the way to use hosts.
        share: of the budget; see `SearchStep`.
        repeats: see `SearchStep`.
    """

    policy: Policy
    way: Natural = 0
    share: Share | None = None
    repeats: ClassVar[bool] = False

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        if evaluations < best.num_confirming:
            return
        problem = best.session.problem
        views = mergings(make_view(using_hosts(problem, self.way)))
        played = num_to_play(problem.num_ops)
        step = GreedyEpisode(policy=self.policy, views=views, played=played)
        step.search(best, evaluations, rng)


def with_first_placements(
    steps: Sequence[SearchStep], problem: Problem, *, is_timed: bool
) -> list[SearchStep]:
    """Return the steps of a search on a large graph, with the quickest methods first.

    Blocks that are dealt to all devices come first. With a budget of evaluations the policy's
    greedy episodes follow, and then the given steps. With a budget of seconds the list schedulers
    among the steps come before the policy; on the largest graphs ETF comes before all of them.

    Args:
        steps: of the search; one of them anneals.
        problem: that is searched.
        is_timed: whether the budget is in seconds.
    """
    # An episode that is told which hosts to use takes half the time.
    policy, ways = load_policy(), [*host_uses(problem), 0]
    at_once = [AtOnce(policy=policy, way=way) for way in ways]
    if not is_timed:
        return DealBlocks.before([*reversed(at_once), *steps], problem)
    anneals = [isinstance(step, AnnealWindows | AnnealFromBest) for step in steps].index(True)
    # On the largest graphs one list scheduler may take all seconds, so only the best is run: ETF.
    etf: Any = ETF.once()
    first = [PlaceOnce(baseline=etf)] if problem.num_ops > HEFT.most_ops else []
    return DealBlocks.before([*first, *steps[:anneals], *at_once, *steps[anneals:]], problem)
