"""Heterogeneous earliest finish time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import MOST_OPS, ListDecisions, ListScheduler, in_order_of_start
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import schedule_ops
from doppler.problem import Problem
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class HEFT(ListScheduler):
    """HEFT: take ops by decreasing upward rank, each to the device and gap in which it ends first.

    The upward rank is the b_level with mean costs. Ties are broken at random, and the best of
    ``evaluations`` runs on the system is returned. Priorities follow the starts of the schedule,
    which is slightly better than the order of ranks.

    Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 2002. There a mean transfer is data over mean bandwidth;
    here it is the mean over the links.
    """

    name: ClassVar[str] = "heft"
    most_ops: ClassVar[int] = MOST_OPS

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        return in_order_of_start(schedule_ops(problem, b_levels(problem), num, rng, insertion=True))
