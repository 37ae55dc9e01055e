"""Turns a placement into decisions that imitation can learn from.

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
        op: [V] the op of each step.
        device: [V] its device.
    """

    op: NDArray[np.int64]
    device: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, placement: Placement) -> Self:
        """Take the ops of a placement by rising priority.

        No op is taken before its producers. If the priorities would do so, the op waits: the next
        one is always that of smallest priority among the ops whose producers are all taken.

        Args:
            problem: of the placement.
            placement: to teach.
        """
        edges = problem.graph.edges
        op_V = ranked_order(problem.num_ops, edges.src, edges.dst, placement.priority)
        return cls(op=op_V, device=placement.device[op_V])

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the decisions (see `contract.Teacher`); ``problem`` must be the placement's."""
        rows = (num_episodes, 1)
        return np.tile(self.op, rows), np.tile(self.device, rows)
