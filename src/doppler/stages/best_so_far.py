"""The best placement so far: which it is, what tells so, and what was executed to know it.

Shape suffixes: B placements, V ops.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement
from doppler.stages.optimisation import seeded_generator
from doppler.system import Session


class BestSoFar:
    """Executes placements and keeps the best one.

    session: the system. confirmations: where the system draws random numbers, executions whose mean
    is what a placement counts; their draws are the same for all placements. 0: the placement's one
    execution counts, however lucky; right where two executions never differ. seed: of these draws.
    on_best: told of every new best placement and its seconds. evaluations: executions before this.
    """

    def __init__(
        self,
        *,
        session: Session,
        confirmations: int,
        seed: int,
        on_best: Callable[[Placement, float], None],
        evaluations: int = 0,
    ) -> None:
        self.session = session
        self.confirmations = confirmations
        self.evaluations = evaluations
        self.placement: Placement | None = None
        self.seconds = float("inf")
        self._seed = seed
        self._on_best = on_best

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.float64]:
        """Cost [B] of each placement, all under one draw; the best of them may be a new best."""
        cost_B = self.session.measure(device_BV, priority_BV, rng=rng).cost_s()
        self.evaluations += len(device_BV)
        best = int(cost_B.argmin())
        placement = Placement.make(self.session.problem, device_BV[best], priority_BV[best])
        if self.confirmations:
            self.confirm(placement)
        else:
            self.offer(placement, float(cost_B[best]))
        return cost_B

    @property
    def num_confirming(self) -> int:
        """Executions of `confirm`."""
        return max(1, self.confirmations)

    def confirm(self, placement: Placement) -> float:
        """Execute one placement as often as it takes to know what it counts; it may be the best."""
        measurement = self.session.measure(
            placement.device[None],
            placement.priority[None],
            repeats=self.num_confirming,
            rng=seeded_generator(self._seed, "confirmation"),
        )
        self.evaluations += self.num_confirming
        seconds = float(measurement.cost_s()[0])
        self.offer(placement, seconds)
        return seconds

    def offer(self, placement: Placement, seconds: float) -> None:
        """A placement whose seconds are known."""
        if seconds < self.seconds:
            self.seconds, self.placement = seconds, placement
            self._on_best(placement, seconds)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {**plain_placement(self.placement, self.seconds), "evaluations": self.evaluations}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.placement, self.seconds = restored_placement(self.session, state)
        self.evaluations = state["evaluations"]


def plain_placement(placement: Placement | None, seconds: float) -> dict[str, Any]:
    """A placement and its seconds as lists and numbers."""
    return {
        "device": None if placement is None else placement.device.tolist(),
        "priority": None if placement is None else placement.priority.tolist(),
        "seconds": seconds,
    }


def restored_placement(session: Session, plain: dict[str, Any]) -> tuple[Placement | None, float]:
    """What `plain_placement` made."""
    if plain["device"] is None:
        return None, plain["seconds"]
    placement = Placement.make(session.problem, plain["device"], plain["priority"])
    return placement, plain["seconds"]
