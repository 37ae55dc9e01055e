"""Writes seconds in the unit of a column, with as many digits as their spread allows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Digits if the spread is unknown.
_DIGITS = 4
# Sums in another order differ in their last digits.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Unit:
    """A unit of time.

    Attributes:
        name: in headings.
        seconds: its length.
    """

    name: str
    seconds: float

    def text(self, seconds: float) -> str:
        """Write seconds with four digits, without the unit.

        Args:
            seconds: to write.
        """
        return f"{seconds / self.seconds:.{_DIGITS}g}"

    def text_with_spread(self, seconds: float, spread_s: float) -> str:
        """Write mean and spread: ``48.91 ± 0.32``, the spread with two digits, the mean to match.

        Args:
            seconds: the mean.
            spread_s: its standard deviation.
        """
        if not math.isfinite(spread_s) or spread_s <= _ROUNDING * abs(seconds):
            return f"{self.text(seconds)} ± 0"
        spread = spread_s / self.seconds
        decimals = max(0, 1 - math.floor(math.log10(spread)))
        return f"{seconds / self.seconds:.{decimals}f} ± {spread:.{decimals}f}"


SECONDS, MILLISECONDS, MICROSECONDS = Unit("s", 1.0), Unit("ms", 1e-3), Unit("us", 1e-6)


def unit_of(seconds: Iterable[float]) -> Unit:
    """Return the unit in which most of some times are at least 1.

    Args:
        seconds: the times.
    """
    known = [abs(one) for one in seconds if math.isfinite(one)]
    typical = float(np.median(known)) if known else 1.0
    units = (SECONDS, MILLISECONDS)
    return next((one for one in units if typical >= one.seconds), MICROSECONDS)
