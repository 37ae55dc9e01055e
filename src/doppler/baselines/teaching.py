"""What a placement teaches: its decisions, one after another.

Shape suffixes: B episodes, V ops and steps.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import ranked_order
from doppler.problem import Placement, Problem


@dataclass(frozen=True, eq=False, kw_only=True)
class TaughtPlacement:
    """A Teacher that knows one placement: every episode takes the same decisions.

    Attributes:
        op, device: [V] of each step.
    """

    op: NDArray[np.int64]
    device: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, placement: Placement) -> Self:
        """Ops by rising priority, each to its device.

        No episode takes an op before its producers. Where the priorities do, the op waits: of the
        ops whose producers are all taken, the one of the smallest priority is next.
        """
        edges = problem.graph.edges
        op_V = ranked_order(problem.num_ops, edges.src, edges.dst, placement.priority)
        return cls(op=op_V, device=placement.device[op_V])

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See contract.Teacher; ``problem`` is the one that the placement was made for."""
        rows = (num_episodes, 1)
        return np.tile(self.op, rows), np.tile(self.device, rows)
