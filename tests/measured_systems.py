"""Simulators that stand for a real system: nothing but their kind tells that they are none."""

from dataclasses import dataclass
from typing import ClassVar, Self

from doppler.simulator import WorkConserving
from doppler.system import SystemKind


@dataclass(frozen=True, kw_only=True)
class Measured(WorkConserving):
    """Seconds that count as measured, with the given noise."""

    name: ClassVar[str] = "stand_in"
    kind: ClassVar[SystemKind] = "measured"

    def with_noise(self, noise: float) -> Self:
        return self
