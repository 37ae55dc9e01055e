"""Searches a few equal layers as a problem of their own, and places all layers like them.

Within the same seconds a search reaches each op of a few layers hundreds of times as often as each
op of the whole graph. Shape suffixes: L layers, V ops of the whole problem, W ops of the few
layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from doppler.extensions.large.few_layers import FewLayers, few_layers
from doppler.extensions.large.windows import AnnealWindows, scheduled
from doppler.problem import Placement, Problem
from doppler.search.engine import Budget, SearchStep, search
from doppler.search.estimating import in_order
from doppler.search.evaluator import Evaluator, ScoredPlacement
from doppler.search.steps import AnnealFromBest, InParts, KeepToHosts, PlaceAgain
from doppler.simulator import SimulatorSession, open_estimates
from doppler.support.options import Count, Share, checked

SHARE = 0.2  # share of the budget
# Share of list schedulers in the search of the few layers; one run takes as long as 20 annealing
# steps.
_LISTS = 0.01
# Largest product of ops, devices and evaluations per execution; without this limit the first turn
# on large layers would take longer than all others.
_MOST_PLACED = 64_000_000
_TILED = "layers"  # source of the placements that are found


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class TileLayers:
    """Search a few layers on estimates, place all layers like them, and execute the result.

    The search starts from the layer of the present placement that would be best for all layers.

    Attributes:
        few: the few layers.
        steps: of their search.
        evaluations: of the few layers, for each execution of the whole that the step may use.
        at_most: executions that count in one turn.
        share: of the budget; see `SearchStep`.
        repeats: see `SearchStep`.

    Source: solving one period of a periodic task system and repeating it: Munier and Hanen, "Cyclic
    scheduling on parallel processors", in Scheduling Theory and its Applications, 1995.
    """

    few: FewLayers
    steps: Sequence[SearchStep]
    evaluations: Count = 1000
    at_most: Count = 64
    share: Share | None = SHARE
    repeats: ClassVar[bool] = True

    @classmethod
    def within(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """Add this step before the windows of a search, if the graph has equal layers.

        The few layers are searched with those of the given steps that build placements and anneal
        them. No step is added if the shares of the steps leave too little of the budget.

        Args:
            steps: of a search.
            problem: that is searched.
        """
        first = next((i for i, one in enumerate(steps) if isinstance(one, AnnealWindows)), None)
        kinds = (InParts, PlaceAgain, KeepToHosts, AnnealFromBest)
        taken = SHARE + sum(step.share or 0.0 for step in steps)
        if first is None or taken > 1.0:
            return list(steps)
        few = few_layers(problem)
        if few is None:
            return list(steps)
        own = cls(few=few, steps=[_short(step) for step in steps if isinstance(step, kinds)])
        return [*steps[:first], own, *steps[first:]]

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        session = best.session
        num = min(self.at_most, evaluations // best.num_confirming)
        if not isinstance(session, SimulatorSession) or session.plans_memory:
            return
        if num == 0 or not session.honours_order:
            return
        with open_estimates(self.few.problem, session.execution.contention) as estimates:
            found = Evaluator(session=estimates, confirmations=0, seed=0)
            if best.placement is not None:
                self._begin(found, in_order(session.problem, best.found), rng)
            size = self.few.problem.num_ops * self.few.problem.num_devices
            each = max(1, min(self.evaluations, _MOST_PLACED // size))
            search(self.steps, found, Budget(evaluations=num * each), rng)
            if found.placement is None:
                return
            start = in_order(self.few.problem, found.found)
            timed = scheduled(estimates, start.device, start.priority)
        placement = Placement.make(session.problem, *self.few.stretched(timed))
        best.confirm(in_order(session.problem, ScoredPlacement(placement, np.inf)), _TILED)

    def _begin(self, found: Evaluator, placement: Placement, rng: np.random.Generator) -> None:
        """Evaluate the placement of each layer as a placement of all layers."""
        few = self.few
        layers = range(few.layers.first, few.layers.last + 1)
        device_LW = np.stack([few.of_layer(placement, layer) for layer in layers])
        device_LW = device_LW[few.problem.allows(device_LW)]
        if len(device_LW):
            start = Placement.make(few.problem, device_LW[0], few.order_of(placement))
            priority_W = in_order(few.problem, ScoredPlacement(start, np.inf)).priority
            found.measure(device_LW, np.tile(priority_W, (len(device_LW), 1)), rng)


def _short(step: SearchStep) -> SearchStep:
    return replace(step, share=_LISTS) if isinstance(step, InParts) else step
