"""How fast devices are, learned from executions so far, for the next simulations.

Costs may be from another day, or from devices that were assumed equal. The costs of devices that
share processors or a memory, such as streams of one GPU, are not changed: in executions their ops
wait for each other, which simulations add by themselves.

Shape suffixes: V ops, D devices.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem

FloatArray = NDArray[np.float64]


class Pace:
    """The ratio of measured to expected op seconds on each device.

    The ratio of one execution is that of the sums over all ops; the median over executions counts.
    So neither short ops nor a disturbed execution distort it.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._ratios: list[FloatArray] = []  # [D] per execution, NaN if a device had no op
        together = [one.devices for one in problem.cluster.shared if len(one.devices) > 1]
        self._sharing = sorted({d for devices in together for d in devices})

    def note(self, device_V: NDArray[np.int64], taken_V: FloatArray) -> None:
        """Record an execution.

        Args:
            device_V: device [V] of each op.
            taken_V: measured seconds [V] of each op.
        """
        num_devices = self._problem.num_devices
        expected_V = self._problem.arrays.op_seconds[np.arange(len(device_V)), device_V]
        taken_D = np.bincount(device_V, taken_V, num_devices)
        expected_D = np.bincount(device_V, expected_V, num_devices)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._ratios.append(np.where(expected_D > 0, taken_D / expected_D, np.nan))

    def applied(self) -> Problem:
        """Return the problem with op times scaled by the measured pace.

        Devices that were never used count as no slower than expected. So a search tries them if the
        others disappoint, and then their pace is known.
        """
        used_ND = np.array(self._ratios).reshape(len(self._ratios), self._problem.num_devices)
        seen_D = np.asarray(~np.isnan(used_ND).all(axis=0))
        if not seen_D.any():
            return self._problem
        ratio_D = np.ones(self._problem.num_devices)
        ratio_D[seen_D] = np.nanmedian(used_ND[:, seen_D], axis=0)
        ratio_D[~seen_D] = min(1.0, float(np.median(ratio_D[seen_D])))
        ratio_D[self._sharing] = 1.0
        arrays = self._problem.arrays
        return replace(
            self._problem, arrays=arrays._replace(op_seconds=arrays.op_seconds * ratio_D)
        )
