"""What a search is made of: baselines, a greedy episode, annealing from the best so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import HEFT, Annealing, Baseline, Dealing
from doppler.baselines.dealing import has_blocks
from doppler.baselines.hosts import num_ways, using_hosts
from doppler.episode import (
    View,
    enough_s,
    make_view,
    mergings,
    next_to,
    num_to_play,
    under_limit,
    with_room,
)
from doppler.errors import InputError
from doppler.options import Count, Natural, Positive, Share, checked
from doppler.policies import Policy
from doppler.problem import Placement, Problem
from doppler.search.best_so_far import BestSoFar
from doppler.search.engine import SearchStep, check_shares
from doppler.search.estimating import (
    AnnealEstimates,
    Estimated,
    NotesTimes,
    estimated_costs,
    limit_of,
    open_estimates_of,
)
from doppler.simulator import SimulatorSession

# Sources of what a policy finds (best_so_far.Found), and of what annealing makes better.
EPISODE, MERGED_EPISODE, GREEDY = "episode", "merged episode", "greedy episode"
_ANNEALED = ", annealing"
# Ways to use hosts where all are not worth their time: freely, one host, all hosts in turn.
_FEW_WAYS = 3
# Greedy episodes of a view at most: where one does not fit, the next fills less of the memory.
_TRIES = 3
# Views that a greedy episode is played of even where the first is close to a lower bound.
_SURELY_PLAYED = 4


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceOnce:
    """A baseline as it is: it takes as many evaluations as it takes."""

    baseline: Baseline
    share: Share | None = None
    repeats: ClassVar[bool] = False

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep; ``evaluations`` are not asked for."""
        best.add(self.baseline.place(best.session, rng), type(self.baseline).__name__.lower())


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceAgain:
    """A baseline with as many evaluations as there are.

    make: called with ``evaluations``, makes it. One that is slow on large graphs (``most_ops``) is
    left out of larger ones once there is a placement.
    """

    make: Callable[..., Baseline]
    share: Share | None = None
    repeats: ClassVar[bool] = True

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep."""
        num = evaluations - best.confirmations
        if num > 0:
            baseline = self.make(evaluations=num)
            most_ops = getattr(baseline, "most_ops", np.inf)
            if best.placement is None or best.session.problem.num_ops <= most_ops:
                best.add(baseline.place(best.session, rng), type(baseline).__name__.lower())


@checked
@dataclass(frozen=True, kw_only=True)
class KeepToHosts:
    """On several hosts: HEFT for each way to use them, one execution each (baselines/hosts.py)."""

    share: Share | None = 0.1
    repeats: ClassVar[bool] = False

    @classmethod
    def before(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """The steps, this one before them where there are several hosts and a share is left."""
        own = cls()
        taken = sum(step.share or 0.0 for step in (own, *steps))
        return [own, *steps] if num_ways(problem) > 1 and taken <= 1.0 else list(steps)

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep; one execution would show nothing of hosts."""
        num = min(num_ways(best.session.problem), evaluations - best.confirmations)
        if num > 1:
            best.add(HEFT(evaluations=num).place(best.session, rng), HEFT.name)


@checked
@dataclass(frozen=True, kw_only=True)
class DealBlocks:
    """Blocks of each node dealt to all devices, for the ways to use hosts (baselines/dealing.py).

    As good as what people place by hand, in hundredths of a second; only of graphs of split nodes.
    """

    share: Share | None = None
    repeats: ClassVar[bool] = False

    @classmethod
    def before(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """The steps, this one before them where the graph has blocks to deal."""
        return [cls(), *steps] if has_blocks(problem) else list(steps)

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep."""
        num = min(_FEW_WAYS, num_ways(best.session.problem), evaluations - best.confirmations)
        if num > 0:
            best.add(Dealing(evaluations=num).place(best.session, rng), Dealing.name)


@checked
@dataclass(frozen=True, kw_only=True)
class InParts:
    """Steps that divide their evaluations, each with a random stream of its own.

    So what one of them finds does not depend on which others there are. A step without a share
    takes an equal part of what the shares leave; where evaluations are few, the first steps have
    them.
    """

    steps: Sequence[SearchStep]
    share: float | None = None
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError("steps: there is none")
        check_shares(self.steps)

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep."""
        seeds = rng.integers(2**62, size=len(self.steps))
        for step, num, seed in zip(self.steps, self._parts(evaluations), seeds, strict=True):
            step.search(best, num, np.random.default_rng(seed), walks=walks)

    def _parts(self, evaluations: int) -> list[int]:
        shares = np.array([np.nan if step.share is None else step.share for step in self.steps])
        free = np.isnan(shares)
        shares[free] = (1.0 - shares[~free].sum()) / max(1, free.sum())
        parts = np.round(shares * evaluations, 6).astype(int)
        rest = round(shares.sum() * evaluations, 6) - parts.sum()
        return (parts + (np.arange(len(parts)) < int(rest))).tolist()


@checked
@dataclass(frozen=True, kw_only=True)
class AnnealFromBest:
    """Annealing from the best placement so far, with order where the system honours it.

    On a real system that notes what ops take its steps are simulated, and where they end is
    executed, again and again: there an execution tells less than the thousands of simulations that
    it lasts for. Where two executions may differ, placements are compared by as many as confirm
    one. hot, cold: see baselines.Annealing.
    """

    hot: Positive
    cold: Positive
    share: Share | None = None
    repeats: ClassVar[bool] = True

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep."""
        draws, num = best.num_confirming, evaluations - best.confirmations
        if best.placement is not None and isinstance(best.session, NotesTimes):
            if every := evaluations // draws:
                simulated = AnnealEstimates(drafts=(), at_most=every, hot=self.hot, cold=self.cold)
                simulated.search(best, evaluations, rng, walks=walks)
            return
        if num < draws:
            return
        annealing = Annealing(
            evaluations=num,
            order=best.session.honours_order,
            starts=min(walks, num // draws),
            draws=draws,
            hot=self.hot,
            cold=self.cold,
        )
        before = best.found.source.removesuffix(_ANNEALED)
        result = annealing.place(best.session, rng, initial=best.placement)
        best.add(result, f"{before}{_ANNEALED}" if best.placement else "annealing")


def told_hosts(view: View) -> list[View]:
    """The view; on several hosts also those in which all ops are on one, or on all in turn.

    Further ways to use hosts (baselines/hosts.py) were worth nothing on 36 problems of four.
    """
    ways = range(1, min(_FEW_WAYS, num_ways(view.problem)))
    return [view, *(make_view(using_hosts(view.problem, way)) for way in ways)]


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class GreedyEpisode:
    """What a policy decides where it does not draw; of several views, where it is estimated best.

    views: of the problem, as it is and merged; one of their placements is executed. played: views
    in all, the others next to the best so far (merging.next_to), the same at every call; fewer
    where an estimate is close to a lower bound (merging.enough_s). least: with room to execute
    fewer placements, it leaves them to the next step.
    """

    policy: Policy
    views: Sequence[View]
    played: Natural = 0
    least: Count = 1
    share: Share | None = None
    repeats: ClassVar[bool] = False
    name: ClassVar[str] = GREEDY

    @classmethod
    def of(cls, policy: Policy, view: View, *, least: int = 1) -> Self:
        """Of the view and its mergings, on several hosts of all that `told_hosts` knows."""
        told = told_hosts(view)
        played = len(told) * num_to_play(view.problem.num_ops)
        views = [one for seen in told for one in mergings(seen)]
        return cls(policy=policy, views=views, played=played, least=least)

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep."""
        if evaluations >= self.least * best.num_confirming:
            with open_estimates_of(best.session) as estimates:
                found = self.chosen(estimates, rng)
            placement = Placement.make(best.session.problem, found.device, found.priority)
            best.confirm(placement, GREEDY)

    def chosen(self, estimates: SimulatorSession, rng: np.random.Generator) -> Placement:
        """See estimating.Chooses."""
        best_view, cost, found = self.views[0], Estimated(np.inf, np.inf, np.inf), None
        known: set[tuple[int, float, bytes]] = set()
        draws = np.random.default_rng(0)
        for i in range(max(len(self.views), self.played)):
            limit_s = limit_of(estimates, cost)
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
            placed, its_cost = self._played(under_limit(view, limit_s), estimates, cost, rng)
            if found is None or its_cost < cost:
                best_view, cost, found = view, its_cost, placed
        assert found is not None
        return Placement.make(estimates.problem, found[0][0], found[1][0])

    def _played(
        self,
        view: View,
        estimates: SimulatorSession,
        best: Estimated,
        rng: np.random.Generator,
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Estimated]:
        """The greedy episode and what it costs; where it may not fit again, filling less."""
        share = np.inf
        found: list[Any] = []
        for _ in range(_TRIES):
            placed = self.policy.rollout(with_room(view, share), 1, 0.0, rng).placements()
            (cost,) = estimated_costs(estimates, *placed)
            found.append((cost, placed))
            if cost.is_safe or cost.seconds >= best.cost:
                break
            share = min(share, 1.0) / cost.used
        cost, placed = min(found, key=itemgetter(0))
        return placed, cost


def _what_is_played(view: View) -> tuple[int, float, bytes]:
    """Equal for views of which greedy episodes do not differ."""
    return id(view.problem), view.arrays.level_counts, view.arrays.group.tobytes()
