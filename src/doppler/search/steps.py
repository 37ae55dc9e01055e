"""What a search is made of: baselines, blocks dealt, annealing from the best so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from doppler.baselines import ETF, HEFT, Annealing, Baseline, Dealing, TooFewError
from doppler.baselines.dealing import has_blocks
from doppler.baselines.hosts import num_ways
from doppler.problem import Problem
from doppler.search.engine import SearchStep, check_shares
from doppler.search.estimating import AnnealOnEstimates, NotesTimes
from doppler.search.evaluator import Evaluator
from doppler.search.greedy import host_uses
from doppler.support.errors import InputError
from doppler.support.options import Positive, Share, checked

# Sources of placements of a policy (evaluator.ScoredPlacement), and the suffix for annealing.
EPISODE, MERGED_EPISODE = "episode", "merged episode"
RETURNED = ", returns"  # behind the source of a placement that episodes returned to and improved
_ANNEALED = ", annealing"


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceOnce:
    """Run a baseline once; it takes as many evaluations as it needs."""

    baseline: Baseline
    share: Share | None = None
    repeats: ClassVar[bool] = False

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep; ``evaluations`` are not asked for."""
        best.add(self.baseline.place(best.session, rng), type(self.baseline).__name__.lower())


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceAgain:
    """Run a baseline with the evaluations of this step, or not if there are too few.

    Attributes:
        make: called with ``evaluations``; makes the baseline.
        share: of the whole budget; None: everything that is left.
    """

    make: Callable[..., Baseline]
    share: Share | None = None
    repeats: ClassVar[bool] = True

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        num = evaluations - best.confirmations
        if num > 0:
            try:
                baseline = self.make(evaluations=num)
            except TooFewError:
                if best.placement is None:
                    raise
                return
            best.add(baseline.place(best.session, rng), type(baseline).__name__.lower())


@checked
@dataclass(frozen=True, kw_only=True)
class KeepToHosts:
    """On several hosts: HEFT for each way to use them, one execution each (baselines/hosts.py).

    On graphs too large for it ETF, for the first ways.
    """

    share: Share | None = 0.1
    repeats: ClassVar[bool] = False

    @classmethod
    def before(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """The steps, this one before them where there are several hosts and a share is left."""
        own = cls()
        taken = sum(step.share or 0.0 for step in (own, *steps))
        return [own, *steps] if num_ways(problem) > 1 and taken <= 1.0 else list(steps)

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep; one execution would show nothing of hosts."""
        problem = best.session.problem
        num = min(num_ways(problem), evaluations - best.confirmations)
        baseline: Any = HEFT(evaluations=max(1, num))
        if _is_slow(baseline, problem):
            num = min(num, 1 + len(host_uses(problem)))
            baseline = ETF(evaluations=max(1, num))
        if num > 1:
            best.add(baseline.place(best.session, rng), type(baseline).__name__.lower())


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
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        ways = 1 + len(host_uses(best.session.problem))
        num = min(ways, evaluations - best.confirmations)
        if num > 0:
            best.add(Dealing(evaluations=num).place(best.session, rng), Dealing.name)


@checked
@dataclass(frozen=True, kw_only=True)
class InParts:
    """Steps that divide their evaluations, each with a random stream of its own.

    So what one of them finds does not depend on which others there are. A step without a share
    takes an equal part of what the shares leave; where evaluations are few, the first steps have
    them. Once anything was executed, baselines that are slow on large graphs (``most_ops``) are
    left out of larger ones.
    """

    steps: Sequence[SearchStep]
    share: float | None = None
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError("steps: the list is empty")
        check_shares(self.steps)

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        seeds = rng.integers(2**62, size=len(self.steps))
        before = best.evaluations
        parts = self._parts(evaluations, 1 + best.confirmations)
        for step, num, seed in zip(self.steps, parts, seeds, strict=True):
            begins = best.evaluations == before or best.has_time()
            if begins and not _is_left_out(step, best):
                step.search(best, num, np.random.default_rng(seed), walks=walks)

    def _parts(self, evaluations: int, least: int) -> list[int]:
        """Evaluations of each step: ``least``, if any, as with fewer it executes nothing."""
        shares = np.array([np.nan if step.share is None else step.share for step in self.steps])
        free = np.isnan(shares)
        shares[free] = (1.0 - shares[~free].sum()) / max(1, free.sum())
        parts = np.round(shares * evaluations, 6).astype(int)
        rest = round(shares.sum() * evaluations, 6) - parts.sum()
        parts += np.arange(len(parts)) < int(rest)
        total = parts[free].sum()
        num = total // least
        if 0 < num < free.sum():
            parts[free] = 0
            parts[np.flatnonzero(free)[:num]] = total // num
            parts[np.flatnonzero(free)[: total % num]] += 1
        return parts.tolist()


@checked
@dataclass(frozen=True, kw_only=True)
class AnnealFromBest:
    """Anneal from the best placement so far, with priorities if the system honours them.

    On a real system that reports the times of ops, the steps are simulated and their result is
    executed, again and again: an execution tells less than the thousands of simulations that fit
    into its time. If two executions may differ, placements are compared by as many as confirm one.

    Attributes:
        hot: first temperature, as in `baselines.Annealing`.
        cold: last temperature.
        share: of the whole budget; None: everything that is left.
    """

    hot: Positive
    cold: Positive
    share: Share | None = None
    repeats: ClassVar[bool] = True

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        draws, num = best.num_confirming, evaluations - best.confirmations
        if best.placement is not None and isinstance(best.session, NotesTimes):
            if every := evaluations // draws:
                simulated = AnnealOnEstimates(
                    drafts=(), at_most=every, hot=self.hot, cold=self.cold
                )
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


def _is_left_out(step: SearchStep, best: Evaluator) -> bool:
    if best.evaluations == 0 or not isinstance(step, PlaceAgain):
        return False
    made = getattr(step.make, "func", step.make)  # what a partial is of
    return _is_slow(made, best.session.problem)


def _is_slow(baseline: Any, problem: Problem) -> bool:
    """Whether one run of it on a graph of this size may take minutes."""
    return problem.num_ops > getattr(baseline, "most_ops", np.inf)
