"""Estimates by a quick search how good the placements of a problem can be."""

from dataclasses import dataclass

import numpy as np

from doppler.baselines.contract import Baseline
from doppler.baselines.heft import HEFT
from doppler.baselines.hosts import num_ways
from doppler.problem import Problem
from doppler.system import System


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The makespan that a baseline finds on a system, always the same for a problem.

    It serves decisions before placement, such as how to split a program into ops. On several hosts,
    HEFT with each number of hosts is tried as well.

    Attributes:
        baseline: to run.
        system: that executes.
    """

    baseline: Baseline
    system: System

    def __call__(self, problem: Problem) -> float:
        """Return the makespan in seconds; inf if nothing that was found fits in memory."""
        with self.system.open(problem) as session:
            found_s = self.baseline.place(session, np.random.default_rng(0)).makespan_s
            if (ways := num_ways(problem)) > 1:
                listed = HEFT(evaluations=ways).place(session, np.random.default_rng(0))
                found_s = min(found_s, listed.makespan_s)
            return found_s
