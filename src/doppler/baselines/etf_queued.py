"""ETF with contention: devices are chosen by when transfers get through the queues of links.

Shape suffixes: B runs, V ops.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import MOST_OPS, ListDecisions, ListScheduler, make_decisions
from doppler.baselines.etf_queued_kernels import schedule_queued_etf_batch
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import make_schedule, queue_keys, tie_seconds
from doppler.baselines.ready_ops_kernels import make_ready_ops, orders_and_ranks
from doppler.problem import Problem
from doppler.simulator.link_kernels import make_queues
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class QueuedETF(ListScheduler):
    """Take the candidate that can start first to the device on which it ends first, in contention.

    Starts and ends take queues into account: transfers over a link follow each other, and a region
    goes to a device once (simulator/link_kernels.py). Of candidates that can start together, the
    one with the largest b_level goes first. Further ties are broken at random, and the best of
    ``evaluations`` runs counts. Priorities are the order in which ops were taken.

    Source: the op is chosen as in ETF (Hwang, Chow, Anger, Lee, 1989), the device as in list
    scheduling with contention (Sinnen and Sousa, "Communication Contention in Task Scheduling",
    IEEE TPDS 2005). Combining the two is ours.
    """

    name: ClassVar[str] = "etf_queued"
    most_ops: ClassVar[int] = MOST_OPS

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        decisions, level_V = make_decisions(num, problem), b_levels(problem)
        partial = make_schedule(problem, tie_seconds(level_V))
        key_BV = queue_keys(level_V, num, rng)
        schedule_queued_etf_batch(
            problem.arrays,
            partial,
            make_queues(problem.arrays),
            make_ready_ops(problem, partial),
            key_BV,
            *orders_and_ranks(key_BV),
            rng.integers(0, 2**62, size=num),
            decisions,
        )
        return decisions
