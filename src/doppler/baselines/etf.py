"""Earliest task first.

Shape suffixes: B runs, V ops.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import ListDecisions, ListScheduler, make_decisions
from doppler.baselines.etf_kernels import schedule_etf_batch
from doppler.baselines.levels import b_levels, static_levels
from doppler.baselines.list_scheduling import make_schedule, queue_keys, tie_seconds
from doppler.baselines.ready_ops_kernels import make_ready_ops, orders_and_ranks
from doppler.problem import Problem
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class ETF(ListScheduler):
    """ETF: of all candidates and devices, schedule the pair that can start earliest.

    Of ops that can start at the same time, the one with the largest static level goes first: the
    longest path to a sink without transfers. If its device has no room, the next device is taken.
    Remaining ties are broken at random, and the best of ``evaluations`` runs on the system is
    returned. Priorities are the order in which ops were taken.

    Source: Hwang, Chow, Anger, Lee, "Scheduling precedence graphs in systems with interprocessor
    communication times", SIAM Journal on Computing 1989; the static level as in Kwok and Ahmad, ACM
    Computing Surveys 1999.
    """

    name: ClassVar[str] = "etf"
    near: ClassVar[bool] = False

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        decisions = make_decisions(num, problem)
        partial = make_schedule(problem, tie_seconds(b_levels(problem)), near=self.near)
        key_BV = queue_keys(static_levels(problem), num, rng)
        schedule_etf_batch(
            problem.arrays,
            partial,
            make_ready_ops(problem, partial),
            key_BV,
            *orders_and_ranks(key_BV),
            rng.integers(0, 2**62, size=num),
            decisions,
        )
        return decisions


@checked
@dataclass(frozen=True, kw_only=True)
class NearETF(ETF):
    """ETF that breaks ties between pairs with equal starts by the seconds of transfers they cause.

    A region that is already on the device causes no transfer. Then come the static level, then
    chance.

    Source: ETF's; this tie-breaking is ours.
    """

    name: ClassVar[str] = "etf_near"
    near: ClassVar[bool] = True
    # It looks at all ready ops, which takes minutes on larger graphs; searches skip it there.
    most_ops: ClassVar[int] = 20_000
