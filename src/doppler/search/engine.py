"""The search engine: steps share a budget, and each starts from the best placement so far."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from doppler.search.effort import Effort
from doppler.search.evaluator import Evaluator
from doppler.support.errors import InputError
from doppler.support.options import Natural, PositiveSeconds, Share, check

# With a budget of seconds: placements of a step's first turn, which is timed; largest growth from
# one turn to the next; share of the step's remaining time that a turn gets; and share below which
# another turn is not worth it.
_FIRST, _GROWTH, _PART, _REST = 4, 8, 0.7, 0.03
# A step is assumed to take at least as long as this many executions took so far. A search that has
# found nothing that fits may take this many times its seconds.
_LEAST, _HOPE = 2, 1.25


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a search may use: either evaluations or seconds.

    Attributes:
        evaluations: number of executions.
        seconds: wall seconds.
    """

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.evaluations is None) == (self.seconds is None):
            raise InputError(
                "evaluations, seconds: give exactly one of them, "
                f"got {self.evaluations} and {self.seconds}"
            )
        if self.evaluations is not None:
            check("evaluations", Natural, self.evaluations)
        if self.seconds is not None:
            check("seconds", PositiveSeconds, self.seconds)


class SearchStep(Protocol):
    """A part of a search.

    Attributes:
        share: of the whole budget; None: everything that earlier steps leave.
        repeats: whether running it again within a budget of seconds may find something better.
    """

    repeats: ClassVar[bool]

    @property
    def share(self) -> float | None: ...

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """Search from the best placement so far.

        Args:
            best: executes placements, counts them and keeps the best one.
            evaluations: maximum number of executions, including confirmations. With too few, the
                step may do nothing.
            rng: the only source of randomness.
            walks: number of searches that may run in parallel.
        """
        ...


def check_shares(steps: Sequence[SearchStep]) -> None:
    """Refuse shares of a budget that are not positive, or that add up to more than 1.

    Args:
        steps: of a search.

    Raises:
        InputError: lists the shares.
    """
    shares = [step.share for step in steps if step.share is not None]
    for share in shares:
        check("share", Share, share)
    if sum(shares) > 1 + 1e-9:
        raise InputError(f"share: of one budget, got {' + '.join(map(str, shares))}")


def search(
    steps: Sequence[SearchStep],
    best: Evaluator,
    budget: Budget,
    rng: np.random.Generator,
    *,
    after: Callable[[SearchStep], None] | None = None,
    enough_s: float = 0.0,
) -> Effort:
    """Run the steps one after another within a budget.

    With a budget of evaluations each step runs once, and equal generators find equal placements.
    With a budget of seconds, how much a step can do in a second depends on graph and machine. So a
    step starts small, is timed, and is repeated with most of its remaining time. A step that would
    take longer than the rest of the budget is not started, but at least one placement is always
    executed.

    Args:
        steps: a step without a share gets what the steps before it leave.
        best: executes placements, counts them and keeps the best one.
        budget: of all steps together.
        rng: the only source of randomness besides the clock.
        after: called with every step when it has ended.
        enough_s: with a budget of seconds, the search ends once a placement takes no longer than
            this.

    Returns:
        The effort of the search.

    Raises:
        InputError: the shares add up to more than the budget.
    """
    check_shares(steps)
    begin_s, before, each_s = time.perf_counter(), best.evaluations, 0.0
    if budget.seconds is not None:
        best.until_s, best.at_last_s = begin_s + budget.seconds, begin_s + _HOPE * budget.seconds
    for step in steps:
        share = 1.0 if step.share is None else step.share
        if budget.evaluations is not None:
            left = max(0, budget.evaluations - (best.evaluations - before))
            num = int(share * budget.evaluations)
            step.search(best, min(left, max(num, math.ceil(share))), rng)
        elif budget.seconds is not None:
            left_s = budget.seconds - (time.perf_counter() - begin_s)
            is_first = best.placement is None and best.evaluations == before
            if is_first or (best.has_time(_LEAST * each_s) and best.seconds > enough_s):
                took_s = _repeat(step, best, min(left_s, share * budget.seconds), rng, enough_s)
                each_s = max(each_s, took_s)
        if after is not None:
            after(step)
    best.until_s = best.at_last_s = math.inf
    return Effort(best.evaluations - before, time.perf_counter() - begin_s)


def _repeat(
    step: SearchStep,
    best: Evaluator,
    seconds: float,
    rng: np.random.Generator,
    enough_s: float,
) -> float:
    """Run a step again and again, each time for most of the remaining time.

    Returns:
        Seconds per execution in the last turn; 0 if the step executes only once, which does not
        tell how long other steps need.
    """
    until_s = time.perf_counter() + seconds
    num, walks = _FIRST * best.num_confirming, len(os.sched_getaffinity(0))
    while True:
        begin_s, before = time.perf_counter(), best.evaluations
        step.search(best, num, rng, walks=walks)
        now_s, used = time.perf_counter(), best.evaluations - before
        each_s, left_s = (now_s - begin_s) / max(1, used), until_s - now_s
        ends = not step.repeats or used == 0 or best.seconds <= enough_s
        if ends or left_s < _REST * seconds or left_s * _PART < each_s:
            return each_s if used > best.num_confirming else 0.0
        num = min(_GROWTH * num, int(left_s * _PART / each_s))
