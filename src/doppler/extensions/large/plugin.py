"""Adds the search on large graphs to every method's steps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doppler.hooks import implements

if TYPE_CHECKING:
    from doppler.problem import Problem
    from doppler.search import SearchStep


@implements
def adapt_search(steps: "Sequence[SearchStep]", problem: "Problem") -> "list[SearchStep]":
    """On a large graph windows before the last annealing; before them a few of its layers."""
    from doppler.extensions.large import AnnealWindows, TileLayers

    return TileLayers.within(AnnealWindows.within(steps, problem), problem)


@implements
def steps_to_compile() -> "list[SearchStep]":
    """Windows, which call compiled code of their own."""
    from doppler.extensions.large import AnnealWindows

    return [AnnealWindows()]
