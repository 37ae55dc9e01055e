"""Schedules for large pipelines: repeats the steady state of a schedule of few microbatches.

Shape suffixes: B placements, V ops.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing
from doppler.extensions.pipelines.orders import pipeline_of, placement_of_orders, renumbered
from doppler.extensions.pipelines.searching import (
    ListSchedules,
    Schedules,
    TorchSchedules,
    found_orders,
)
from doppler.extensions.pipelines.stages import Action, Orders, graph_of
from doppler.problem import Placement, Problem, build
from doppler.simulator import SimulatorSession, WorkConserving, open_estimates
from doppler.support.errors import InputError
from doppler.support.options import Count, Positive, checked

IntArray = NDArray[np.int64]
# Numbers of microbatches of a period, and number of moments of the small schedule that are tried
# for its position.
_PERIODS, _MOMENTS = (1, 2, 3, 4), 12


@checked
@dataclass(frozen=True, kw_only=True)
class Patterns(Schedules):
    """Anneals a schedule of fewer microbatches, and repeats a period of each device's order.

    A period of q microbatches is a part of a device's order in which every action of each of its
    stages occurs q times. Repeating it takes no more memory than doing it once.

    Attributes:
        steps: of annealing the small schedule.
        least: microbatches of the small schedule per device. A pipeline with fewer than 1.5 times
            as many has no pattern.

    Source: the steady state of modulo scheduling, Rau, "Iterative modulo scheduling", MICRO 1994;
    finding it in a small instance is ours.
    """

    steps: Count = 4000
    least: Positive = 2.0
    name: ClassVar[str] = "pattern"

    def placements(self, problem: Problem, rng: np.random.Generator) -> list[Placement]:
        """Return the best placement by estimates, or none (see `Schedules`).

        Args:
            problem: of a pipeline.
            rng: for annealing.
        """
        pipeline = pipeline_of(problem).pipeline
        fewer = max(4, int(np.ceil(self.least * pipeline.num_devices)))
        fewer += (pipeline.microbatches - fewer) % 2
        if pipeline.microbatches < 1.5 * fewer:
            return []
        small = build(graph_of(replace(pipeline, microbatches=fewer)), problem.cluster)
        found = self._small(small, rng)
        if found is None:
            return []
        with open_estimates(problem) as estimates:
            best = _best_unrolled(estimates, found[0], found[1], pipeline.microbatches - fewer)
        return [] if best is None else [best]

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Return the best placement, or list schedules if there is no pattern (see search.Drafts).

        Args:
            problem: of a pipeline.
            num: number of placements, B.
            rng: for annealing.
        """
        found = self.placements(problem, rng)
        if not found:
            return ListSchedules().draw(problem, num, rng)
        return np.stack([found[0].device] * num), np.stack([found[0].priority] * num)

    def _small(
        self, small: Problem, rng: np.random.Generator
    ) -> tuple[Orders, dict[Action, float]] | None:
        """Return the orders of the small problem, and the start of each action."""
        drafts = [kind.draw(small, 1, rng) for kind in (TorchSchedules(), ListSchedules())]
        device_BV, priority_BV = map(np.concatenate, zip(*drafts, strict=True))
        with open_estimates(small) as estimates:
            cost_B = estimates.measure(device_BV, priority_BV).cost_s()
            best = int(cost_B.argmin())
            annealing = Annealing(
                evaluations=self.steps, order=True, hot=0.02, cold=1e-4, devices=False
            )
            start = Placement.make(small, device_BV[best], priority_BV[best])
            result = annealing.place(estimates, rng, initial=start)
        if not np.isfinite(result.makespan_s):
            return None
        strict: Any = WorkConserving(queue="strict")
        orders = found_orders(small, strict, result.placement)
        placement = placement_of_orders(small, orders)
        with strict.open(small) as session:
            trace = session.trace(placement)
        begin = dict(zip(pipeline_of(small).actions, trace.op_start_s.tolist(), strict=True))
        return orders, begin


def _best_unrolled(
    estimates: SimulatorSession, orders: Orders, begin: dict[Action, float], more: int
) -> Placement | None:
    """Return the best placement over all periods and moments."""
    problem = estimates.problem
    last_s = max(begin.values())
    best, best_s = None, np.inf
    for period in _PERIODS:
        if more % period:
            continue
        windows = [_windows(order, period) for order in orders]
        if not all(windows):
            continue
        for moment_s in np.linspace(0.0, last_s, _MOMENTS + 2)[1:-1]:
            longer = []
            for order, known in zip(orders, windows, strict=True):
                low, high = min(
                    known,
                    key=lambda one: abs(begin[order[one[0]]] - moment_s),
                )
                longer.append(_repeated(order, low, high, more // period))
            try:
                placement = placement_of_orders(problem, longer)
            except InputError:  # the orders wait for each other
                continue
            cost = estimates.measure(placement.device[None], placement.priority[None]).cost_s()[0]
            if cost < best_s:
                best, best_s = placement, float(cost)
    return best


def _windows(order: list[Action], period: int) -> list[tuple[int, int]]:
    """Find parts (from, to) of an order in which each action occurs ``period`` times."""
    kinds = {(action.stage, action.kind) for action in order}
    length = period * len(kinds)
    found = []
    for low in range(len(order) - length + 1):
        count = Counter((action.stage, action.kind) for action in order[low : low + length])
        if all(count[kind] == period for kind in kinds):
            found.append((low, low + length))
    return found


def _repeated(order: list[Action], low: int, high: int, times: int) -> list[Action]:
    return renumbered(order[:low] + order[low:high] * times + order[low:])
