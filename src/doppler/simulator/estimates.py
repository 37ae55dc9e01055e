"""Sessions whose seconds are estimates from one pass over the ops, the cheapest model.

Shape suffixes: V ops, R regions, D devices.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem, ProblemArrays
from doppler.simulator.estimates_kernels import NUM_PARTS, estimate
from doppler.simulator.link_kernels import Queues, make_queues
from doppler.simulator.session import SimulatorSession
from doppler.simulator.state import DEVICE, TASK, memory_can_lack
from doppler.trace import Contention, ExecutionRules


class EstimateState(NamedTuple):
    """Buffers of one estimate, which the next reuses; afterwards ``tasks`` holds its schedule."""

    tasks: NDArray[np.void]  # TASK [V]
    devices: NDArray[np.void]  # DEVICE [D]
    queues: Queues
    order: NDArray[np.int64]  # [V] op by priority
    limited: bool  # whether memory can be short at all
    in_use: NDArray[np.float64]  # [D, _PARTS + 1] changes of the bytes in use, by parts of the time
    last_use: NDArray[np.float64]  # [D] scratch: of one region


def open_estimates(
    problem: Problem, contention: Contention = "fifo", *, limited: bool = True
) -> SimulatorSession:
    """Open a session whose seconds are estimates; its evaluations are not executions.

    Priorities must rank no op before its producers, or the estimate is inf. Peaks of memory are
    those of the estimated schedule.

    Args:
        problem: to place.
        contention: with ``none``, transfers wait for nothing.
        limited: whether memory is limited.
    """
    return SimulatorSession(
        problem=problem,
        engine=estimate,
        execution=ExecutionRules(contention=contention, queue="priority"),
        noise=0.0,
        make_state=partial(_make_state, contention=contention, limited=limited),
    )


def _make_state(arrays: ProblemArrays, *, contention: Contention, limited: bool) -> EstimateState:
    num_ops, num_devices = arrays.op_seconds.shape
    return EstimateState(
        tasks=np.zeros(num_ops, TASK),
        devices=np.zeros(num_devices, DEVICE),
        queues=make_queues(arrays, contention),
        order=np.zeros(num_ops, np.int64),
        limited=limited and memory_can_lack(arrays),
        in_use=np.zeros((num_devices, NUM_PARTS + 1)),
        last_use=np.zeros(num_devices),
    )
