"""What every placement method that is not learned looks like."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement, Problem
from doppler.support.errors import InputError
from doppler.system import Session


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchResult:
    """The best placement that a method found.

    Attributes:
        placement: device and priority of each op.
        makespan_s: its cost on the system that was searched.
        evaluations: executions that the search used.
        lower_bound_s: a bound that the search proved, if it proves bounds.
    """

    placement: Placement
    makespan_s: float
    evaluations: int
    lower_bound_s: float | None = None


class TooFewError(InputError):
    """A method cannot do anything with so few evaluations."""


class Baseline(Protocol):
    """A method that searches for a placement on one system."""

    @property
    def uses_order(self) -> bool:
        """Whether it chooses the priorities of its placements, instead of a default order."""
        ...

    @property
    def needs_order(self) -> bool:
        """Whether it is useless on a system that ignores the order of a placement."""
        ...

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """Search for a placement.

        Args:
            session: executes placements on the system at hand and counts them.
            rng: the only source of randomness.
        """
        ...


@runtime_checkable
class Teacher(Protocol):
    """What can teach imitation: ordered decisions.

    A baseline that decides without executing anything is one itself; any other teaches the
    placement that it finds (teaching.TaughtPlacement).
    """

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Op and device of each step of ``num_episodes`` episodes, [B, V] each."""
        ...
