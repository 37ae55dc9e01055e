"""How good the placements of a problem can be, as a quick search sees it."""

from dataclasses import dataclass

import numpy as np

from doppler.baselines.contract import Baseline
from doppler.problem import Problem
from doppler.system import System


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Seconds of the placement that a baseline finds on a system; always the same for a problem.

    It serves decisions that come before placement, such as how to split a program into ops.
    """

    baseline: Baseline
    system: System

    def __call__(self, problem: Problem) -> float:
        """Makespan in seconds, inf where nothing that was found fits in memory."""
        with self.system.open(problem) as session:
            return self.baseline.place(session, np.random.default_rng(0)).makespan_s
