"""Adds search steps for large graphs to every method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doppler.hooks import implements

if TYPE_CHECKING:
    from doppler.problem import Problem
    from doppler.search import SearchStep


@implements
def adapt_search(steps: "Sequence[SearchStep]", problem: "Problem") -> "list[SearchStep]":
    """Add steps for large graphs: windows before the last annealing, repeated layers before those.

    Args:
        steps: of a search.
        problem: that is searched.
    """
    from doppler.extensions.large import AnnealWindows, TileLayers

    return TileLayers.within(AnnealWindows.within(steps, problem), problem)


@implements
def steps_to_compile() -> "list[SearchStep]":
    """Return the steps that call compiled code of their own: windows."""
    from doppler.extensions.large import AnnealWindows

    return [AnnealWindows()]
