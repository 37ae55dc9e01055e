"""Counts how often the simulator ranks two placements differently from their executions."""

from collections.abc import Sequence

from doppler.experiment.interleaved import Contender
from doppler.experiment.judging import nominal_s
from doppler.experiment.specification import Specification
from doppler.report.paired import PairedRatio

# Simulated seconds that differ by less than this share count as equal.
_SAME = 1e-9


def disagreements(
    spec: Specification, contenders: Sequence[Contender], ratios: Sequence[PairedRatio]
) -> str:
    """Count placements whose simulated rank against the first one contradicts the measurement.

    Only placements count whose measured seconds clearly differ from the first one's: the 95%
    interval of their ratio does not contain 1.

    Args:
        spec: of the real system; its simulator predicts the seconds.
        contenders: the placements, the reference first; those of other systems are ignored.
        ratios: measured seconds of the first over those of each other placement.

    Returns:
        Text such as ``2 of 7``.
    """
    simulated = spec.on(spec.simulator)
    told = {
        one.method.name: nominal_s(simulated, one.method.placement)
        for one in contenders
        if one.spec is spec
    }
    first_s = told[contenders[0].method.name]
    surely = [one for one in ratios if one.other in told and not one.low <= 1.0 <= one.high]
    otherwise = 0
    for one in surely:
        simulated_ratio = first_s / told[one.other]
        agrees = simulated_ratio < 1.0 - _SAME if one.ratio < 1.0 else simulated_ratio > 1.0 + _SAME
        otherwise += not agrees
    return f"{otherwise} of {len(surely)}"
