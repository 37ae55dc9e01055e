"""The state of a run in which tasks share resources of the machine.

Shape suffixes: K tasks, S shared resources.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem import ProblemArrays
from doppler.problem.sharing import SharingArrays
from doppler.simulator.state import State, make_state


class SharingState(NamedTuple):
    """Buffers of one run with sharing, which the next run reuses.

    ``tasks``, ``num_transfers`` and ``devices`` are those of ``base``, because sessions look for
    them here.
    """

    base: State
    tasks: NDArray[np.void]
    num_transfers: NDArray[np.int64]
    devices: NDArray[np.void]
    sharing: SharingArrays
    running: NDArray[np.uint32]  # [K] tasks that run, in no order
    joins: NDArray[np.float64]  # [K] when a task begins to use what is shared; inf: it has, or none
    rate: NDArray[np.float64]  # [K] of its speed alone, from above 0 to 1
    goal: NDArray[np.float64]  # [K] scratch: the rate from now on, 0 while it is not known
    weight: NDArray[np.float64]  # [K] speed alone; 0 while it uses nothing shared
    first_use: NDArray[np.int64]  # [K] where the uses of a task begin in ``sharing.uses``
    end_use: NDArray[np.int64]  # [K] where they end
    moved: NDArray[np.float64]  # [K] what it uses of a resource that counts bytes, at full speed
    processed: NDArray[np.float64]  # [K] the same of processors
    slowed: NDArray[np.bool_]  # [K] whether it ever ran at less than its full speed
    left: NDArray[np.float64]  # [S] scratch: what is not used yet
    used: NDArray[np.float64]  # [S] scratch: what is used, or is for a weight of 1


def make_sharing_state(arrays: ProblemArrays, *, sharing: SharingArrays) -> SharingState:
    """Allocate buffers for any placement of a problem.

    Args:
        arrays: the problem.
        sharing: demands of its tasks, and capacities.
    """
    base = make_state(arrays)
    num_tasks, num_resources = len(base.tasks), len(sharing.capacity)
    return SharingState(
        base=base,
        tasks=base.tasks,
        num_transfers=base.num_transfers,
        devices=base.devices,
        sharing=sharing,
        running=np.zeros(num_tasks, np.uint32),
        joins=np.zeros(num_tasks),
        rate=np.zeros(num_tasks),
        goal=np.zeros(num_tasks),
        weight=np.zeros(num_tasks),
        first_use=np.zeros(num_tasks, np.int64),
        end_use=np.zeros(num_tasks, np.int64),
        moved=np.zeros(num_tasks),
        processed=np.zeros(num_tasks),
        slowed=np.zeros(num_tasks, np.bool_),
        left=np.zeros(num_resources),
        used=np.zeros(num_resources),
    )
