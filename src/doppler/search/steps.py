"""The steps of searches: running baselines, dealing blocks, annealing from the best so far."""

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
RETURNED = ", returns"  # appended to the source of a placement that returning episodes improved
_ANNEALED = ", annealing"


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceOnce:
    """Run a baseline once, with as many evaluations as it needs.

    Attributes:
        baseline: to run.
        share: of the whole budget; None: everything that is left.
    """

    baseline: Baseline
    share: Share | None = None
    repeats: ClassVar[bool] = False

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """Run the baseline (see `engine.SearchStep`); ``evaluations`` is ignored."""
        best.add(self.baseline.place(best.session, rng), _name_of(self.baseline))


@checked
@dataclass(frozen=True, kw_only=True)
class PlaceAgain:
    """Run a baseline with the evaluations of this step; skip it if there are too few.

    Attributes:
        make: makes the baseline from the argument ``evaluations``.
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
            best.add(baseline.place(best.session, rng), _name_of(baseline))


@checked
@dataclass(frozen=True, kw_only=True)
class KeepToHosts:
    """On several hosts: run HEFT for each way to use them, one execution each (baselines/hosts.py).

    On graphs too large for HEFT, run ETF for the first ways.

    Attributes:
        share: of the whole budget; None: everything that is left.
    """

    share: Share | None = 0.1
    repeats: ClassVar[bool] = False

    @classmethod
    def before(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """Put this step before the others if there are several hosts and a share of budget is left.

        Args:
            steps: the others.
            problem: to search on.
        """
        own = cls()
        taken = sum(step.share or 0.0 for step in (own, *steps))
        return [own, *steps] if num_ways(problem) > 1 and taken <= 1.0 else list(steps)

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """Run the heuristic (see `engine.SearchStep`), unless only one execution is allowed."""
        problem = best.session.problem
        num = min(num_ways(problem), evaluations - best.confirmations)
        baseline: Any = HEFT(evaluations=max(1, num))
        if _is_slow(baseline, problem):
            num = min(num, 1 + len(host_uses(problem)))
            baseline = ETF(evaluations=max(1, num))
        if num > 1:
            best.add(baseline.place(best.session, rng), _name_of(baseline))


@checked
@dataclass(frozen=True, kw_only=True)
class DealBlocks:
    """Deal the blocks of each node to all devices, for several ways to use hosts.

    It takes hundredths of a second and is as good as placements by hand (baselines/dealing.py). It
    needs a graph with split nodes.

    Attributes:
        share: of the whole budget; None: everything that is left.
    """

    share: Share | None = None
    repeats: ClassVar[bool] = False

    @classmethod
    def before(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """Put this step before the others if the graph has blocks to deal.

        Args:
            steps: the others.
            problem: to search on.
        """
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
    """Divide the evaluations among several steps, each with its own random stream.

    What a step finds therefore does not depend on the other steps. Steps without a share divide
    what the shares leave equally; if evaluations are few, the first steps get them. After the first
    execution, baselines that are slow on large graphs (``most_ops``) are skipped there.

    Attributes:
        steps: in order.
        share: of the whole budget; None: everything that is left.
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
        """Evaluations of each step: 0, or at least ``least``, since fewer would execute nothing."""
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
    """Anneal from the best placement so far, including priorities if the system honours them.

    On a real system that reports the times of ops, annealing runs in a simulation and its result is
    executed, repeatedly: one execution tells less than the thousands of simulations that fit into
    its time. If executions may differ, placements are compared by as many executions as confirm
    one.

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
    made = getattr(step.make, "func", step.make)  # the class behind a functools.partial
    return _is_slow(made, best.session.problem)


def _is_slow(baseline: Any, problem: Problem) -> bool:
    """Whether a baseline may take minutes on a graph of this size."""
    return problem.num_ops > getattr(baseline, "most_ops", np.inf)


def _name_of(baseline: Baseline) -> str:
    """Its name in sources: that of the list scheduler, as in drafts, else that of the class."""
    return getattr(baseline, "name", type(baseline).__name__.lower())
