"""Greedy episodes: what a policy decides without sampling, on the views that suit it best."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.hosts import num_ways, using_hosts
from doppler.env import (
    ProblemView,
    enough_s,
    make_view,
    mergings,
    next_to,
    num_to_play,
    under_limit,
    with_room,
)
from doppler.policies import Policy
from doppler.problem import Placement, Problem
from doppler.search.estimating import (
    Estimated,
    check_view,
    estimated_costs,
    limit_of,
    open_estimates_of,
)
from doppler.search.evaluator import Evaluator
from doppler.simulator import SimulatorSession
from doppler.support.options import Count, Natural, Share, checked

# Source (evaluator.ScoredPlacement) of placements that a greedy episode found.
GREEDY = "greedy episode"
# Ways to use hosts if there is no time for more: freely, one host, all hosts in turn.
_FEW_WAYS = 3
# Largest number of greedy episodes of a view; if one does not fit, the next fills less memory.
_TRIES = 3
# Views that are played even if the first is close to a lower bound.
_SURELY_PLAYED = 4


def host_uses(problem: Problem) -> range:
    """Return the ways to use several hosts that a policy is given: one host only, or all in turn.

    Other ways (baselines/hosts.py) brought nothing on 36 problems with four hosts.

    Args:
        problem: gives the hosts.
    """
    return range(1, min(_FEW_WAYS, num_ways(problem)))


def views_of_host_uses(view: ProblemView) -> list[ProblemView]:
    """Return the view, and one view for each of `host_uses`.

    Args:
        view: of the problem.
    """
    ways = host_uses(view.problem)
    return [view, *(make_view(using_hosts(view.problem, way)) for way in ways)]


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class GreedyEpisode:
    """Play greedy episodes on several views, and execute the placement with the best estimate.

    Attributes:
        policy: that plays.
        views: of the problem, with and without merged ops.
        played: number of episodes in all. After those of ``views``, further views are neighbours of
            the best so far (merging.next_to), the same at every call. Fewer are played once an
            estimate is close to a lower bound (merging.enough_s).
        least: the step does nothing if fewer placements than this can be executed.
        share: of the whole budget; None: everything that is left.
    """

    policy: Policy
    views: Sequence[ProblemView]
    played: Natural = 0
    least: Count = 1
    share: Share | None = None
    repeats: ClassVar[bool] = False
    name: ClassVar[str] = GREEDY

    @classmethod
    def of(cls, policy: Policy, view: ProblemView, *, least: int = 1) -> Self:
        """Make the step for a view, its mergings, and those of each of `views_of_host_uses`.

        Args:
            policy: that plays.
            view: of the problem.
            least: as above.
        """
        told = views_of_host_uses(view)
        played = len(told) * num_to_play(view.problem.num_ops)
        views = [one for seen in told for one in mergings(seen)]
        return cls(policy=policy, views=views, played=played, least=least)

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        if evaluations >= self.least * best.num_confirming:
            with open_estimates_of(best.session) as estimates:
                found = self.chosen(best, estimates, rng)
            placement = Placement.make(best.session.problem, found.device, found.priority)
            best.confirm(placement, GREEDY)

    def chosen(
        self, search: Evaluator, estimates: SimulatorSession, rng: np.random.Generator
    ) -> Placement:
        check_view(self.views[0], estimates.problem)
        best_view, cost, found = self.views[0], Estimated(np.inf, np.inf, np.inf), None
        took_s = 0.0
        known: set[tuple[int, float, bytes]] = set()
        draws = np.random.default_rng(0)
        for i in range(max(len(self.views), self.played)):
            limit_s, begin_s = limit_of(estimates, cost), time.perf_counter()
            if found is not None and not search.has_time(took_s):
                break
            if i >= _SURELY_PLAYED and limit_s <= enough_s(self.views[0]):
                break
            if i < len(self.views):
                view = self.views[i]
            else:
                assert found is not None
                plain = next(one for one in self.views if one.problem is best_view.problem)
                view = next_to(plain, best_view, found[0][0], draws)
            if (label := _what_is_played(view)) in known:
                continue
            known.add(label)
            seen = under_limit(view, limit_s)
            placed, its_cost = self._played(search, seen, estimates, cost, rng)
            took_s = time.perf_counter() - begin_s
            if found is None or its_cost < cost:
                best_view, cost, found = view, its_cost, placed
        assert found is not None
        return Placement.make(estimates.problem, found[0][0], found[1][0])

    def _played(
        self,
        search: Evaluator,
        view: ProblemView,
        estimates: SimulatorSession,
        best: Estimated,
        rng: np.random.Generator,
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Estimated]:
        """Play a greedy episode; if it may not fit in memory, play again with less memory."""
        share = np.inf
        found: list[Any] = []
        for _ in range(_TRIES):
            placed = self.policy.rollout(with_room(view, share), 1, 0.0, rng).placements()
            (cost,) = estimated_costs(estimates, *placed)
            found.append((cost, placed))
            if cost.is_safe or cost.seconds >= best.cost or not search.has_time():
                break
            share = min(share, 1.0) / cost.used
        cost, placed = min(found, key=itemgetter(0))
        return placed, cost


def _what_is_played(view: ProblemView) -> tuple[int, float, bytes]:
    """A key that is equal for views with equal greedy episodes."""
    return id(view.problem), view.arrays.level_counts, view.arrays.group.tobytes()
