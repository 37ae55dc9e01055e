"""The best placement so far: which it is, what tells so, and what was executed to know it.

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
    """A placement and its seconds, or that there is none.

    Attributes:
        source: what found it, as "episode" or "clustering"; behind a comma what made it better.
    """

    placement: Placement | None
    seconds: float
    source: str = ""

    def plain(self) -> dict[str, Any]:
        """As text, lists and numbers."""
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
        """What `plain` made; nothing if that was for another problem."""
        if plain["problem_hash"] != problem.hash:
            return NO_PLACEMENT
        placement = Placement.make(problem, plain["device"], plain["priority"])
        return cls(placement, float(plain["seconds"]), str(plain.get("source", "")))


NO_PLACEMENT = ScoredPlacement(None, float("inf"))
GIVEN = "given"  # the source of what came from outside


def confirmations_within(evaluations: int, confirmations: int) -> int:
    """Executions that confirm a placement: of so many in all, few where these are few.

    At most half as many as placements can be compared then: of 8 and of 16 two each, where four
    each found placements that take 0.7% to 1.2% longer before the last choice, on 32 problems of
    no table. The only execution of all counts as it is.
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
        """Execute placements, all under one draw; the best of them may become the best placement.

        Args:
            device_BV: device of each op.
            priority_BV: rank of each op.
            rng: of the draw.
            sources: [B] what found each placement.
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
        """Return whether there is time for something that takes so many seconds."""
        until_s = self.at_last_s if self.placement is None else self.until_s
        return time.perf_counter() + seconds < until_s

    @property
    def num_confirming(self) -> int:
        """Number of executions that `confirm` makes."""
        return max(1, self.confirmations)

    def confirm(self, placement: Placement, source: str = GIVEN) -> float:
        """Execute one placement as often as its seconds need; it may become the best."""
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
        """Offer a placement that took ``seconds``; they are trusted if executions never differ."""
        if self.confirmations:
            self.confirm(placement, source)
        else:
            self._keep(placement, seconds, source)

    def add(self, result: SearchResult, source: str = GIVEN) -> None:
        """Count what a search executed by itself, and offer its placement."""
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
