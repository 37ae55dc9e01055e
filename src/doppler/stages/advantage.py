"""Advantages: how much less an episode cost than was to be expected.

Shape suffixes: B episodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Past(NamedTuple):
    """The feasible episodes so far: how many, and the sum of what they cost."""

    count: int
    total_s: float

    def with_batch(self, cost_B: NDArray[np.float64]) -> "Past":
        """This batch added."""
        feasible = cost_B[np.isfinite(cost_B)]
        return Past(self.count + len(feasible), self.total_s + float(feasible.sum()))


NO_PAST = Past(0, 0.0)


def batch_advantage(cost_B: NDArray[np.float64], past: Past = NO_PAST) -> NDArray[np.float64]:
    """(mean - cost) / standard deviation of the batch [B]; 0 where all costs are equal.

    An infeasible episode (inf) counts as the worst feasible one and once their spread more; if
    none is feasible there is nothing to learn from.
    """
    finite_B = np.isfinite(cost_B)
    if not finite_B.any():
        return np.zeros_like(cost_B)
    worst, spread = cost_B[finite_B].max(), np.ptp(cost_B[finite_B])
    cost_B = np.where(finite_B, cost_B, worst + max(spread, 0.1 * worst))
    deviation = cost_B.std()
    if deviation <= 1e-12 * abs(cost_B.mean()):
        return np.zeros_like(cost_B)
    return (cost_B.mean() - cost_B) / deviation


def running_mean_advantage(cost_B: NDArray[np.float64], past: Past) -> NDArray[np.float64]:
    """1 - cost / mean of all costs so far, this batch included [B].

    An infeasible episode counts twice the mean.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III: running mean - makespan. There in
    raw cost units, here as a share of the mean: the same in any unit of time.
    """
    count, total_s = past.with_batch(cost_B)
    if total_s == 0.0:
        return np.zeros_like(cost_B)
    return np.where(np.isfinite(cost_B), 1.0 - cost_B / (total_s / count), -1.0)


ADVANTAGES: dict[str, Callable[[NDArray[np.float64], Past], NDArray[np.float64]]] = {
    "batch": batch_advantage,
    "running_mean": running_mean_advantage,
}
