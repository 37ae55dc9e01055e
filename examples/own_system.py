"""Your own system: what counts is not the makespan, but what 95 of 100 executions stay below.

    python examples/own_system.py [seconds]

A system opens a problem; its session measures placements. Whatever searches then searches for it.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

import doppler
from doppler.graph import synthetic
from doppler.problem import Placement, Problem
from doppler.simulator import WorkConserving
from doppler.system import Measurement, SystemKind
from doppler.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Cautious:
    """The work-conserving simulator whose seconds are the 95th percentile under jitter.

    Attributes:
        noise: standard deviation of the logarithm of every op's and transfer's seconds.
    """

    noise: float = 0.1
    name: ClassVar[str] = "cautious"
    kind: ClassVar[SystemKind] = "simulated"
    queue: ClassVar[str] = "priority"
    streams: ClassVar[int] = 1

    def open(self, problem: Problem) -> "CautiousSession":
        """A session for one problem."""
        return CautiousSession(problem, self.noise)


class CautiousSession:
    """See doppler.system.Session."""

    honours_order = True  # ready ops run by priority
    is_random = False  # two executions of a placement take the same seconds

    def __init__(self, problem: Problem, noise: float) -> None:
        self.problem, self.evaluations = problem, 0
        self.inner = WorkConserving(noise=noise).open(problem)

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        """The percentile of twenty executions of each placement, all under the same draws."""
        same_draws = np.random.default_rng(0)
        drawn = self.inner.measure(device_BV, priority_BV, repeats=20, rng=same_draws)
        self.evaluations += len(device_BV) * repeats
        worst_B1 = np.quantile(drawn.seconds, 0.95, axis=1, keepdims=True)
        return Measurement(
            seconds=np.repeat(worst_B1, repeats, axis=1),
            peak_bytes=drawn.peak_bytes,
            feasible=drawn.feasible,
        )

    def trace(self, placement: Placement) -> Trace:
        """One execution without jitter."""
        return self.inner.trace(placement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)


def main(seconds: float) -> None:
    """Place a random graph for both systems."""
    graph = synthetic(name="layered", family="layered", num_ops=60, transfer_ratio=1.0, seed=0)
    for system in (WorkConserving(), Cautious()):
        print(f"{system.name}:")
        print(doppler.place(graph, cluster="p100x4", system=system, seconds=seconds))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
