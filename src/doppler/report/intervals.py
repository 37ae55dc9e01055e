"""Ratios of mean makespans over seeds, and their confidence intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

_ROUNDING = 1e-9  # rounding errors of sums are smaller


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Geometric mean of one method's makespans over that of another, with its 95% interval.

    Attributes:
        value: the ratio.
        low: lower end of the interval; nan if either method has one seed.
        high: upper end of the interval; nan if either method has one seed.
    """

    value: float
    low: float
    high: float

    @property
    def is_above_one(self) -> bool:
        """Whether the whole interval is above 1, so that the other method is faster."""
        return self.low > 1.0 + _ROUNDING

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "-"
        if np.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(one: Any, other: Any) -> Ratio:
    """Return the ratio of one row of a summary to another; nan if a makespan is 0.

    Args:
        one: a row with ``log_mean``, ``log_spread`` and ``seeds``.
        other: likewise.

    Source: Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 1947, on logarithms: the seeds of two methods are
    independent given the problem.
    """
    difference = one.log_mean - other.log_mean
    if one.seeds < 2 or other.seeds < 2 or not np.isfinite(difference):
        return Ratio(value=float(np.exp(difference)), low=np.nan, high=np.nan)
    variances = np.array([one.log_spread**2 / one.seeds, other.log_spread**2 / other.seeds])
    variance = variances.sum()
    margin = 0.0
    if variance > _ROUNDING**2:
        degrees = variance**2 / (variances**2 / [one.seeds - 1, other.seeds - 1]).sum()
        margin = float(t.ppf(0.975, degrees) * np.sqrt(variance))
    low, value, high = np.exp([difference - margin, difference, difference + margin])
    return Ratio(value=float(value), low=float(low), high=float(high))
