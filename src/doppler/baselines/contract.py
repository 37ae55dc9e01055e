"""The interface of placement methods that do not learn."""

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
    """A method needs more evaluations than it has."""


class Baseline(Protocol):
    """A method that searches for a placement on one system."""

    @property
    def uses_order(self) -> bool:
        """Whether it chooses priorities instead of using a default order."""
        ...

    @property
    def needs_order(self) -> bool:
        """Whether it is useless on a system that ignores priorities."""
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
    """What imitation learns from: ordered decisions.

    A baseline that decides without executing anything is a teacher itself. Any other baseline
    teaches the placement that it finds (teaching.TaughtPlacement).
    """

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return op and device of each step of ``num_episodes`` episodes, [B, V] each."""
        ...
