"""Search steps combined into one baseline, which is what learning must be compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines import SearchResult
from doppler.hooks import plugins
from doppler.problem import Placement, Problem
from doppler.search.engine import Budget, SearchStep, check_shares, search
from doppler.search.evaluator import Evaluator, confirmations_within
from doppler.search.steps import KeepToHosts
from doppler.support.errors import InputError
from doppler.support.options import BatchOrNone, Count, checked
from doppler.system import Session


def suited(steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
    """Return the steps, plus those that several hosts or a plugin add for this problem.

    Args:
        steps: of any method.
        problem: to search on.
    """
    found = KeepToHosts.before(steps, problem)
    adapted = plugins().hook.adapt_search(steps=found, problem=problem)
    return found if adapted is None else list(adapted)


@checked
@dataclass(frozen=True, kw_only=True)
class Combined:
    """A baseline that runs several search steps within one budget.

    Attributes:
        evaluations: total number.
        confirmations: maximum number that repeat promising placements, see `Evaluator`.
        steps: in order.
    """

    evaluations: Count
    confirmations: BatchOrNone
    steps: Sequence[SearchStep]
    uses_order: ClassVar[bool] = True
    needs_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError("baseline.steps: the list is empty")
        check_shares(self.steps)

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        seed = int(rng.integers(2**62))
        confirmations = confirmations_within(self.evaluations, self.confirmations)
        best = Evaluator(session=session, confirmations=confirmations, seed=seed)
        problem = session.problem
        search(suited(self.steps, problem), best, Budget(evaluations=self.evaluations), rng)
        anywhere = problem.group_seconds.argmin(axis=1)  # used if nothing was found that fits
        return SearchResult(
            placement=best.placement or Placement.make(problem, anywhere),
            makespan_s=best.seconds,
            evaluations=best.evaluations,
        )
