"""Predict earliest finish time: a list scheduler that looks ahead.

Shape suffixes: V ops, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import MOST_OPS, ListDecisions, ListScheduler, in_order_of_start
from doppler.baselines.list_scheduling import schedule_ops
from doppler.baselines.peft_kernels import fill_optimistic_costs
from doppler.graph.levels import topological_order
from doppler.problem import Problem
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class PEFT(ListScheduler):
    """Take ops by falling mean optimistic cost to the device with the earliest expected end.

    The optimistic cost of an op on a device is the longest path from there to a sink if every op on
    it runs on the best device for that path. The expected end is the end of the op on the device,
    gaps included, plus this cost. Ties are broken at random, and the best of ``evaluations`` runs
    counts. Priorities follow the starts in the schedule.

    Source: Arabnejad, Barbosa, "List scheduling algorithm for heterogeneous systems by an
    optimistic cost table", IEEE TPDS 2014. There all transfers take mean times in the table; here
    they take those of the link between the two devices, for the region that an edge carries. Means
    over devices are over those that can run the op. Memory is treated as in list_scheduling.py.
    """

    name: ClassVar[str] = "peft"
    most_ops: ClassVar[int] = MOST_OPS

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        cost_VD = optimistic_costs(problem)
        able_VD = np.isfinite(problem.arrays.op_seconds)
        mean_V = np.where(able_VD, cost_VD, 0.0).sum(axis=1) / able_VD.sum(axis=1)
        return in_order_of_start(
            schedule_ops(problem, mean_V, num, rng, insertion=True, after_VD=cost_VD)
        )


def optimistic_costs(problem: Problem) -> NDArray[np.float64]:
    """Return the least seconds [V, D] from the end of each op on each device to the end of all."""
    edges = problem.graph.edges
    cost_VD = np.zeros((problem.num_ops, problem.num_devices))
    order_V = topological_order(problem.num_ops, edges.src, edges.dst)
    fill_optimistic_costs(problem.arrays, np.array(order_V, np.int64)[::-1].copy(), cost_VD)
    return cost_VD
