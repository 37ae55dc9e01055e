"""How fast devices are, by the executions so far: what a simulation of the next ones begins with.

Costs may be of another day, or of devices that were thought alike. Shape suffixes: V ops, D
devices.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem

FloatArray = NDArray[np.float64]


class Pace:
    """Seconds that ops took on each device, over those that were expected of them.

    Of each execution counts the ratio of the sums, of all executions the median: so neither short
    ops nor a run that something else disturbed decide.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._ratios: list[FloatArray] = []  # of each execution [D], NaN where a device had no op

    def note(self, device_V: NDArray[np.int64], taken_V: FloatArray) -> None:
        """An execution: where its ops were, and the seconds that they took."""
        num_devices = self._problem.num_devices
        expected_V = self._problem.arrays.op_seconds[np.arange(len(device_V)), device_V]
        taken_D = np.bincount(device_V, taken_V, num_devices)
        expected_D = np.bincount(device_V, expected_V, num_devices)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._ratios.append(np.where(expected_D > 0, taken_D / expected_D, np.nan))

    def applied(self) -> Problem:
        """The problem with ops as slow as that; on devices never used, not slower than expected.

        So a search tries these where the others disappoint, and knows them then.
        """
        used_ND = np.array(self._ratios).reshape(len(self._ratios), self._problem.num_devices)
        seen_D = np.asarray(~np.isnan(used_ND).all(axis=0))
        if not seen_D.any():
            return self._problem
        ratio_D = np.ones(self._problem.num_devices)
        ratio_D[seen_D] = np.nanmedian(used_ND[:, seen_D], axis=0)
        ratio_D[~seen_D] = min(1.0, float(np.median(ratio_D[seen_D])))
        arrays = self._problem.arrays
        return replace(
            self._problem, arrays=arrays._replace(op_seconds=arrays.op_seconds * ratio_D)
        )
