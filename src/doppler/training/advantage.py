"""Advantages: how much less an episode cost than expected.

cost_B is in seconds [B], inf if a placement does not fit in memory. shortfall_B is how much memory
it lacks [B], see system.Measurement.memory_shortfall.

Shape suffixes: B episodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class CostHistory(NamedTuple):
    """The feasible episodes so far.

    Attributes:
        count: their number.
        total_s: sum of their costs, seconds.
    """

    count: int
    total_s: float

    def with_batch(self, cost_B: FloatArray) -> "CostHistory":
        """Return the history with this batch added."""
        feasible = cost_B[np.isfinite(cost_B)]
        return CostHistory(self.count + len(feasible), self.total_s + float(feasible.sum()))


NO_HISTORY = CostHistory(0, 0.0)


def batch_advantage(
    cost_B: FloatArray, shortfall_B: FloatArray, past: CostHistory = NO_HISTORY
) -> FloatArray:
    """Return (mean - cost) / standard deviation over the batch [B]; 0 if all costs are equal.

    An infeasible episode (inf) costs as much as the worst feasible one plus the range of the
    feasible costs (or a tenth of the worst, if that is more), and more the more memory it lacks. If
    no episode is feasible, only the lack of memory counts.

    Args:
        cost_B: seconds of each episode.
        shortfall_B: how much memory each lacks.
        past: ignored.
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
    """Return 1 - cost / mean of all costs so far, including this batch [B].

    An infeasible episode costs twice the mean, whatever memory it lacks.

    Args:
        cost_B: seconds of each episode.
        shortfall_B: ignored.
        past: costs before this batch.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III: running mean - makespan. The paper
    uses raw cost units; here it is a share of the mean, which does not depend on the unit of time.
    """
    count, total_s = past.with_batch(cost_B)
    if total_s == 0.0:
        return np.zeros_like(cost_B)
    return np.where(np.isfinite(cost_B), 1.0 - cost_B / (total_s / count), -1.0)


ADVANTAGES: dict[str, Callable[[FloatArray, FloatArray, CostHistory], FloatArray]] = {
    "batch": batch_advantage,
    "running_mean": running_mean_advantage,
}
