"""What every placement method that is not learned looks like."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement, Problem
from doppler.system import Session


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchResult:
    """The best placement that a method found.

    makespan_s: its cost on the system that was searched. evaluations: executions that the search
    used.
    """

    placement: Placement
    makespan_s: float
    evaluations: int


class Baseline(Protocol):
    """A method that searches for a placement on one system.

    uses_order: its placements carry priorities that it chose, not a default order.
    """

    @property
    def uses_order(self) -> bool:
        """Whether the method chooses priorities."""
        ...

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """Search; all randomness comes from ``rng``."""
        ...


class Teacher(Protocol):
    """What can teach imitation: ordered decisions."""

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Op and device of each step of ``num_episodes`` episodes, [B, V] each."""
        ...
