"""Critical path list scheduling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import ListDecisions, ListScheduler
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import schedule_ops
from doppler.problem import Problem
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class CriticalPath(ListScheduler):
    """Take the candidate with the largest b_level to the device on which it can start first.

    Ties are broken at random, and the best of ``evaluations`` runs is returned. Priorities are the
    order in which ops were taken.

    Source: Kwok and Ahmad, ACM Computing Surveys 1999, as used by DOPPLER (Yao et al., ICLR 2026).
    The released code breaks ties with the wrong list and starts ops too early; this is the
    heuristic as described.
    """

    name: ClassVar[str] = "critical_path"

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        return schedule_ops(problem, b_levels(problem), num, rng, insertion=False)
