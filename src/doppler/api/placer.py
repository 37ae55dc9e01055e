"""Placer: doppler.place for many models or graphs, whose search is as long as it pays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.export import ExportedProgram

from doppler.api.placed import Placed
from doppler.api.placing import place
from doppler.cluster import Cluster
from doppler.einsum import Decomposition
from doppler.graph import DataflowGraph
from doppler.options import Amount, Positive, Seed, Share, checked
from doppler.placer import LEVELS, Climbed, ProblemPlacer, WhenToGoOn
from doppler.system import System


class Placer:
    """Places models or graphs as they come, and learns which of them deserve more search.

    Each is placed by a list scheduler first, then by the policy of the package at once, then
    with 64, 1,000, 10,000 and 100,000 executions: as long as what a level more is expected to
    bring is worth its seconds. A placement that reaches the lower bound needs no more. What a
    level brings is learned from the problems that went all the way: the first, and later ones
    at random, ever fewer (docs/placer.md).
    """

    @checked
    def __init__(
        self,
        *,
        price: Positive = 0.01,
        tolerance: Amount = 1e-6,
        ask: Share = 1.0,
        seed: Seed = 0,
    ) -> None:
        """Begin with no experience.

        Args:
            price: of a second: at 0.01 a placement has to become 1% better for it.
            tolerance: of the lower bound; within it a placement is good enough.
            ask: how often, in the beginning, a problem goes all the way to be learned from.
            seed: of these questions.
        """
        rules = WhenToGoOn(price=price, tolerance=tolerance, ask=ask)
        self._placer = ProblemPlacer(rules, seed=seed)

    @checked
    def place(
        self,
        model: nn.Module | ExportedProgram | str | Path | DataflowGraph,
        example_inputs: Any = None,
        cluster: str | Path | Cluster = "h100x8",
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        decomposition: Literal["auto", "published"] | Decomposition = "auto",
        system: System | None = None,
        training: bool = False,
        learning_rate: float = 1e-3,
        seed: Seed = 0,
        trust: bool = False,
    ) -> Placed:
        """Place the next one.

        Args:
            model: all of these as `doppler.place` takes them.
            example_inputs: likewise.
            cluster: likewise.
            example_kwargs: likewise.
            decomposition: likewise.
            system: likewise.
            training: likewise.
            learning_rate: likewise.
            seed: likewise.
            trust: likewise.

        Raises:
            InputError: as `doppler.place`.
        """
        return place(
            model,
            example_inputs,
            cluster,
            example_kwargs=example_kwargs,
            evaluations=LEVELS[-1].evaluations,
            method=[self._placer.step],
            decomposition=decomposition,
            system=system,
            training=training,
            learning_rate=learning_rate,
            seed=seed,
            trust=trust,
        )

    @property
    def history(self) -> Sequence[Climbed]:
        """What became of each problem: its levels, their makespans and seconds."""
        return tuple(self._placer.climbed)

    def save(self, path: str | Path) -> None:
        """Write what was learned, as JSON."""
        self._placer.save(path)

    def load(self, path: str | Path) -> None:
        """Go on with what `save` wrote.

        Raises:
            InputError: the file is no such thing.
        """
        self._placer.load(path)
