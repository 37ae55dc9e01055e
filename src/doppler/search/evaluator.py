"""Executes placements within a search, counts the executions and keeps the best placement.

Shape suffixes: B placements, V ops.
"""

import time
from collections.abc import Callable, Sequence
from math import inf, isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import SearchResult
from doppler.problem import Placement, Problem
from doppler.search.effort import seeded_generator
from doppler.system import Measurement, Session


class ScoredPlacement(NamedTuple):
    """A placement and its makespan, or none.

    Attributes:
        placement: None if there is none.
        seconds: its makespan; inf if there is none.
        source: the step that found it, such as "episode" or "clustering", followed after commas by
            the steps that improved it.
    """

    placement: Placement | None
    seconds: float
    source: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as texts, lists and numbers."""
        placement = self.placement
        return {
            "problem_hash": None if placement is None else placement.problem_hash,
            "device": None if placement is None else placement.device.tolist(),
            "priority": None if placement is None else placement.priority.tolist(),
            "seconds": self.seconds,
            "source": self.source,
        }

    @classmethod
    def restored(cls, plain: dict[str, Any], problem: Problem) -> "ScoredPlacement":
        """Restore what `plain` returned; no placement if it was for another problem.

        Args:
            plain: from `plain`.
            problem: of the placement.
        """
        if plain["problem_hash"] != problem.hash:
            return NO_PLACEMENT
        placement = Placement.make(problem, plain["device"], plain["priority"])
        return cls(placement, float(plain["seconds"]), str(plain.get("source", "")))


NO_PLACEMENT = ScoredPlacement(None, float("inf"))
GIVEN = "given"  # the source of placements from outside the search


def confirmations_within(evaluations: int, confirmations: int) -> int:
    """Limit the executions that confirm a placement if there are few evaluations.

    At least two placements per confirmation can then be compared. On 32 problems outside our
    tables, budgets of 8 and 16 found placements that take 0.7% to 1.2% longer with four
    confirmations than with two. A single execution is not confirmed.

    Args:
        evaluations: total number of executions.
        confirmations: the configured number.
    """
    return min(confirmations, isqrt(evaluations // 2))


class Evaluator:
    """Executes placements and keeps the best one.

    Args:
        session: the system.
        confirmations: if two executions may differ, the number of executions whose mean decides
            what a placement counts; their draws are the same for all placements. 0: one execution
            decides.
        seed: of these draws.
        on_best: called with every new best placement and its seconds.
        evaluations: executions before this search.

    Attributes:
        until_s: time (`time.perf_counter`) at which a search with a placement should end.
        at_last_s: time at which a search without a placement must end.
    """

    def __init__(
        self,
        *,
        session: Session,
        confirmations: int,
        seed: int,
        on_best: Callable[[Placement, float], None] | None = None,
        evaluations: int = 0,
    ) -> None:
        self.session = session
        self.confirmations = confirmations if confirmations and session.is_random else 0
        self.evaluations = evaluations
        self.found = NO_PLACEMENT
        self.until_s = self.at_last_s = inf
        self._seed = seed
        self._on_best = on_best

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64],
        rng: np.random.Generator,
        sources: Sequence[str] | None = None,
    ) -> Measurement:
        """Execute placements, all with the same draw of jitter; one may become the best so far.

        Args:
            device_BV: device of each op.
            priority_BV: rank of each op.
            rng: draws the jitter.
            sources: [B] the step that found each placement.
        """
        measurement = self.session.measure(device_BV, priority_BV, rng=rng)
        self.evaluations += len(device_BV)
        cost_B = measurement.cost_s()
        best = int(cost_B.argmin())
        placement = Placement.make(self.session.problem, device_BV[best], priority_BV[best])
        self.offer(placement, float(cost_B[best]), sources[best] if sources else GIVEN)
        return measurement

    @property
    def placement(self) -> Placement | None:
        """The best placement; None if there is none yet."""
        return self.found.placement

    @property
    def seconds(self) -> float:
        """Seconds of the best placement; inf if there is none."""
        return self.found.seconds

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether there is time for something that takes so many seconds."""
        until_s = self.at_last_s if self.placement is None else self.until_s
        return time.perf_counter() + seconds < until_s

    @property
    def num_confirming(self) -> int:
        """Number of executions that `confirm` makes."""
        return max(1, self.confirmations)

    def confirm(self, placement: Placement, source: str = GIVEN) -> float:
        """Execute a placement as often as its makespan requires; it may become the best so far.

        Args:
            placement: to execute.
            source: the step that found it.

        Returns:
            Its makespan: the mean if it was executed several times.
        """
        measurement = self.session.measure(
            placement.device[None],
            placement.priority[None],
            repeats=self.num_confirming,
            rng=seeded_generator(self._seed, "confirmation"),
        )
        self.evaluations += self.num_confirming
        seconds = float(measurement.cost_s()[0])
        self._keep(placement, seconds, source)
        return seconds

    def offer(self, placement: Placement, seconds: float, source: str = GIVEN) -> None:
        """Offer a placement with its seconds, which are trusted if executions never differ.

        Args:
            placement: to offer.
            seconds: of one execution.
            source: the step that found it.
        """
        if self.confirmations:
            self.confirm(placement, source)
        else:
            self._keep(placement, seconds, source)

    def add(self, result: SearchResult, source: str = GIVEN) -> None:
        """Count the executions of a search that ran by itself, and offer its placement.

        Args:
            result: of the search.
            source: its name.
        """
        self.evaluations += result.evaluations
        self.offer(result.placement, result.makespan_s, source)

    def _keep(self, placement: Placement, seconds: float, source: str) -> None:
        if seconds < self.seconds:
            self.found = ScoredPlacement(placement, float(seconds), source)
            if self._on_best is not None:
                self._on_best(placement, seconds)

    def state(self) -> dict[str, Any]:
        """Return plain numbers, lists and texts for a checkpoint."""
        return {**self.found.plain(), "evaluations": self.evaluations}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.found = ScoredPlacement.restored(state, self.session.problem)
        self.evaluations = state["evaluations"]
