"""Peak memory of an execution, computed from the times of its tasks by the simulator's rules.

Every device holds its inputs throughout. The regions of an op take memory from its start. A region
that is moved takes memory on the other device from the start of the transfer. A copy is freed when
the last task that reads it has finished. At the same instant, memory is freed before it is taken.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.executor.tasks import Tasks
from doppler.problem import Problem


def peak_bytes(
    problem: Problem,
    tasks: Tasks,
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the largest memory in use on each device [D].

    Args:
        problem: gives sizes.
        tasks: of the execution.
        start: start times [K] of tasks, seconds.
        finish: finish times [K] of tasks, seconds.
    """
    arrays, num_ops, num_devices = problem.arrays, tasks.num_ops, problem.num_devices
    regions = problem.graph.regions
    device_V = np.array(tasks.resource[:num_ops])
    region_T = np.array(tasks.region, dtype=np.int64)
    transfer_T = num_ops + np.arange(len(region_T))
    dst_T = np.array([tasks.channel(k)[1] for k in transfer_T.tolist()], dtype=np.int64)
    end = finish.max()
    # Copies: one per region where it was made, one per transfer, one per op that no op reads.
    home_R = device_V[regions.src]
    last = np.full((len(regions), num_devices), -np.inf)
    region_E = np.repeat(np.arange(len(regions)), np.diff(regions.consumer_ptr))
    np.maximum.at(last, (region_E, device_V[regions.consumers]), finish[regions.consumers])
    np.maximum.at(last, (region_T, home_R[region_T]), finish[transfer_T])
    sinks = np.flatnonzero(arrays.sink_bytes)
    device = np.concatenate([home_R, dst_T, device_V[sinks]])
    size = np.concatenate(
        [arrays.region_bytes, arrays.region_bytes[region_T], arrays.sink_bytes[sinks]]
    )
    born = np.concatenate([start[regions.src], start[transfer_T], start[sinks]])
    dies = np.concatenate(
        [last[np.arange(len(regions)), home_R], last[region_T, dst_T], np.full(len(sinks), end)]
    )
    held_D = np.zeros(num_devices)
    input_I = np.repeat(np.arange(len(arrays.input_bytes)), np.diff(arrays.input_ptr))
    held = np.unique(np.stack([input_I, device_V[arrays.input_consumers]]), axis=1)
    np.add.at(held_D, held[1], arrays.input_bytes[held[0]])
    peak_D = np.empty(num_devices)
    for d in range(num_devices):
        on = device == d
        change = np.concatenate([-size[on], size[on]])
        order = np.lexsort((change, np.concatenate([dies[on], born[on]])))
        peak_D[d] = held_D[d] + max(0.0, change[order].cumsum().max(initial=0.0))
    return peak_D
