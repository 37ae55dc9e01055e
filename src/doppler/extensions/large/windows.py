"""Anneals large graphs one window at a time, so that a change of a few ops costs little.

Other searches estimate all ops for every change of one op (estimating.py): with 10,000 ops they
make some thousand changes within seconds. Here a change is judged by the ops that run at about the
same time. Shape suffixes: V ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing
from doppler.extensions.large.window import Timed, Window, window_of
from doppler.problem import Placement, Problem
from doppler.search.engine import SearchStep
from doppler.search.estimating import as_executed, in_order, open_estimates_of, ranked_by_start
from doppler.search.evaluator import Evaluator
from doppler.search.steps import AnnealFromBest
from doppler.simulator import SimulatorSession, open_estimates
from doppler.support.options import Count, Positive, Share, checked

IntArray = NDArray[np.int64]

_IN_WINDOWS = ", windows"  # appended to the source of a placement that windows improved
# Number of windows before each execution. On graphs with more ops than the second number several
# windows are judged at once, because estimating all ops takes longer than the windows.
_WINDOWS, _ONE_BY_ONE = 16, 20_000
# On graphs with fewer ops a search reaches every op within seconds without windows.
_LEAST_OPS = 2_000


@checked
@dataclass(frozen=True, kw_only=True)
class AnnealWindows:
    """Anneal windows of the best placement so far, in random order, each as a problem of its own.

    A result is kept, and executed, if the estimate of the whole graph is no worse with it. The step
    needs a placement to start from, and a simulator that keeps to orders.

    Attributes:
        ops: number of ops in a window, of neighbouring ranks.
        behind: number of ops after them that stay where they are, but count for the makespan.
        steps: annealing steps in each window.
        at_most: executions in one turn.
        hot: see baselines.Annealing.
        cold: see baselines.Annealing.
        share: of the budget; see `SearchStep`.
        repeats: see `SearchStep`.

    Source: freeing a part of a solution and solving it again while the rest is fixed: Shaw, "Using
    constraint programming and local search methods to solve vehicle routing problems", CP 1998. The
    part that runs at one time, as in rolling horizons of job shops: Singer, "Decomposition methods
    for large job shops", Computers & Operations Research 2001.
    """

    ops: Count = 50
    behind: Count = 25
    steps: Count = 400
    at_most: Count = 64
    hot: Positive = 0.1
    cold: Positive = 1e-4
    share: Share | None = 0.4
    repeats: ClassVar[bool] = True

    @classmethod
    def within(cls, steps: Sequence[SearchStep], problem: Problem) -> list[SearchStep]:
        """Add this step before the annealing that ends a search on a large graph.

        No step is added if nothing comes before that annealing, or if the shares of the steps leave
        too little of the budget.

        Args:
            steps: of a search.
            problem: that is searched.
        """
        own = cls()
        taken = sum(step.share or 0.0 for step in (own, *steps))
        anneals = len(steps) > 1 and isinstance(steps[-1], AnnealFromBest)
        if problem.num_ops < _LEAST_OPS or not anneals or taken > 1.0:
            return list(steps)
        return [*steps[:-1], own, steps[-1]]

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        session = best.session
        num = min(self.at_most, evaluations // best.num_confirming)
        if not isinstance(session, SimulatorSession) or session.plans_memory:
            return
        if best.placement is None or not session.honours_order:
            return
        source = f"{best.found.source.removesuffix(_IN_WINDOWS)}{_IN_WINDOWS}"
        with open_estimates_of(session) as estimates:
            start = in_order(session.problem, as_executed(session, best.found))
            now = by_time(estimates, scheduled(estimates, start.device, start.priority))
            left: list[tuple[int, int]] = []
            for turn in range(num):
                if turn and not best.has_time():
                    break
                left = left or self._all_windows(session.problem.num_ops, rng)
                now = self._improved(estimates, now, left[:_WINDOWS], rng)
                left = left[_WINDOWS:]
                best.confirm(Placement.make(session.problem, now.device, now.priority), source)

    def _all_windows(self, num_ops: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return the first rank and the end of windows that cover all ops, cut at random."""
        cuts = np.arange(-int(rng.integers(self.ops)), num_ops + self.ops, self.ops)
        cuts = np.unique(cuts.clip(0, num_ops))
        pairs = np.stack([cuts[:-1], cuts[1:]], axis=1)
        return [(int(begin), int(end)) for begin, end in rng.permutation(pairs)]

    def _improved(
        self,
        estimates: SimulatorSession,
        now: Timed,
        windows: Sequence[tuple[int, int]],
        rng: np.random.Generator,
    ) -> Timed:
        """Return the schedule after some windows, each of which is kept or not."""
        at_once = max(1, len(now.device) // _ONE_BY_ONE)
        for first in range(0, len(windows), at_once):
            device_V, priority_V = now.device.copy(), now.priority.copy()
            taken: list[Window] = []
            for begin, end in windows[first : first + at_once]:
                last = min(end + self.behind, len(device_V))
                if all(last <= other.begin or other.last <= begin for other in taken):
                    window = window_of(estimates.problem, now, begin, end, last)
                    window.put(
                        now.ranked, self._annealed(estimates, window, rng), device_V, priority_V
                    )
                    taken.append(window)
            found = scheduled(estimates, device_V, priority_V)
            if found.seconds <= now.seconds < np.inf or found.seconds < now.seconds:
                now = found
        return now

    def _annealed(
        self, estimates: SimulatorSession, window: Window, rng: np.random.Generator
    ) -> Placement:
        """Return the annealed placement of a window."""
        annealing = Annealing(evaluations=self.steps, order=True, hot=self.hot, cold=self.cold)
        with open_estimates(window.problem, estimates.execution.contention) as session:
            return annealing.place(session, rng, initial=window.placement).placement


def scheduled(estimates: SimulatorSession, device_V: IntArray, priority_V: IntArray) -> Timed:
    """Estimate when the ops of a placement run.

    Args:
        estimates: session that estimates.
        device_V: device of each op.
        priority_V: priority of each op, after those of its producers.
    """
    seconds = float(estimates.measure(device_V[None], priority_V[None]).cost_s()[0])
    times: list[NDArray[np.void]] = []
    estimates.in_parallel(lambda _, state: times.append(state.tasks.copy()), 1)
    (task_V,) = times
    ranked = np.argsort(priority_V)
    return Timed(seconds, device_V, priority_V, ranked, task_V["start"], task_V["finish"])


def by_time(estimates: SimulatorSession, now: Timed) -> Timed:
    """Rank a placement by start, so that neighbours run at the same time, unless that takes longer.

    Args:
        estimates: session that estimates.
        now: the placement.
    """
    found = scheduled(estimates, now.device, ranked_by_start(now.start, now.priority))
    return found if found.seconds <= now.seconds else now
