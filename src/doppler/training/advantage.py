"""Advantages: how much less an episode cost than was to be expected.

cost_B: seconds [B], inf where a placement does not fit. shortfall_B: how much memory it lacks [B],
see system.Measurement.memory_shortfall.

Shape suffixes: B episodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class CostHistory(NamedTuple):
    """The feasible episodes so far: how many, and the sum of what they cost."""

    count: int
    total_s: float

    def with_batch(self, cost_B: FloatArray) -> "CostHistory":
        """This batch added."""
        feasible = cost_B[np.isfinite(cost_B)]
        return CostHistory(self.count + len(feasible), self.total_s + float(feasible.sum()))


NO_HISTORY = CostHistory(0, 0.0)


def batch_advantage(
    cost_B: FloatArray, shortfall_B: FloatArray, past: CostHistory = NO_HISTORY
) -> FloatArray:
    """(mean - cost) / standard deviation of the batch [B]; 0 where all costs are equal.

    An infeasible episode (inf) counts as the worst feasible one and once their spread more, and
    the more the more memory it lacks; if none is feasible only that counts.
    """
    finite_B = np.isfinite(cost_B)
    if finite_B.any():
        worst, spread = cost_B[finite_B].max(), np.ptp(cost_B[finite_B])
        beyond_B = max(spread, 0.1 * worst) * (1.0 + shortfall_B)
        cost_B = np.where(finite_B, cost_B, worst + beyond_B)
    else:
        cost_B = shortfall_B
    deviation = cost_B.std()
    if deviation <= 1e-12 * abs(cost_B.mean()):
        return np.zeros_like(cost_B)
    return (cost_B.mean() - cost_B) / deviation


def running_mean_advantage(
    cost_B: FloatArray, shortfall_B: FloatArray, past: CostHistory
) -> FloatArray:
    """1 - cost / mean of all costs so far, this batch included [B].

    An infeasible episode counts twice the mean, whatever it lacks.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III: running mean - makespan. There in
    raw cost units, here as a share of the mean: the same in any unit of time.
    """
    count, total_s = past.with_batch(cost_B)
    if total_s == 0.0:
        return np.zeros_like(cost_B)
    return np.where(np.isfinite(cost_B), 1.0 - cost_B / (total_s / count), -1.0)


ADVANTAGES: dict[str, Callable[[FloatArray, FloatArray, CostHistory], FloatArray]] = {
    "batch": batch_advantage,
    "running_mean": running_mean_advantage,
}
