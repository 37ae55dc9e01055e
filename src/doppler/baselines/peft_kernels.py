"""Compiled: the optimistic cost table of PEFT, see peft.py.

Dimensions: V ops, D devices. Indices: v op, r region, d and other devices, i position in a list.
"""

import numpy as np

from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled


@compiled
def fill_optimistic_costs(problem, order_V, cost_VD):
    """Fill in the least seconds from the end of each op on each device to the end of all.

    Args:
        problem: ProblemArrays.
        order_V: ops, consumers first.
        cost_VD: zeros; filled in.
    """
    num_devices = cost_VD.shape[1]
    for v in order_V:
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
                consumer = problem.consumers[i]
                for d in range(num_devices):
                    least = np.inf
                    for other in range(num_devices):
                        seconds = cost_VD[consumer, other] + problem.op_seconds[consumer, other]
                        if other != d:
                            seconds += move_seconds(problem, r, d, other)
                        least = min(least, seconds)
                    cost_VD[v, d] = max(cost_VD[v, d], least)
