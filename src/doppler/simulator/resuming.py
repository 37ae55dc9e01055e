"""A schedule from which the next run can resume, and its buffers.

Shape suffixes as in state.py.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.simulator.state import TASK, State, memory_can_lack
from doppler.simulator.watching_kernels import Notes, Watch, make_notes, make_watch


class Known(NamedTuple):
    """The schedule of one placement, and what the next run needs."""

    tasks: NDArray[np.void]  # TASK [K]
    copies: NDArray[np.uint32]  # [E] as State.copies
    notes: Notes
    peak: NDArray[np.float64]  # [D] bytes
    seconds: NDArray[np.float64]  # [1] its makespan
    begin: NDArray[np.int64]  # [1] tasks that had ended before the last run went on
    watch: Watch  # of the last run
    has_instants: bool  # there may be tasks that take no time
    in_use: bool  # else a search simulates every placement from the start


def make_known(arrays: ProblemArrays, state: State, *, in_use: bool) -> Known:
    """Allocate buffers for one search, without a known schedule."""
    num_tasks, memory = len(state.tasks), memory_can_lack(arrays)
    return Known(
        tasks=np.zeros(num_tasks, TASK),
        copies=np.zeros(len(state.copies), np.uint32),
        notes=make_notes(arrays, num_tasks, memory=memory),
        peak=np.zeros(len(arrays.memory_bytes)),
        seconds=np.zeros(1),
        begin=np.zeros(1, np.int64),
        watch=make_watch(arrays, num_tasks, len(state.uses), memory=memory),
        has_instants=_has_instants(arrays),
        in_use=in_use,
    )


def _has_instants(arrays: ProblemArrays) -> bool:
    """Whether some op or transfer may take no time; if unsure, True.

    Beside much longer ones, one may take too little to move the clock: the sum is rounded.
    """
    able_VD, foreign_DD = np.isfinite(arrays.op_seconds), ~np.eye(len(arrays.latency_s), dtype=bool)
    fan_out_R, has_links = np.diff(arrays.consumer_ptr), len(arrays.size) > 0 and foreign_DD.any()
    least_s = float(arrays.op_seconds.min(initial=np.inf))
    latest_s = float(np.where(able_VD, arrays.op_seconds, 0.0).max(axis=1).sum())
    if has_links and len(arrays.kind_seconds):
        least_s = min(least_s, float(arrays.kind_seconds.min()))
        latest_s += float((arrays.kind_seconds.max(axis=(1, 2)) * fan_out_R).sum())
    elif has_links:
        shortest_DD = arrays.latency_s + arrays.size.min() * arrays.seconds_per_size
        longest_R = arrays.latency_s.max() + arrays.size * arrays.seconds_per_size.max()
        least_s = min(least_s, float(shortest_DD[foreign_DD].min()))
        latest_s += float((longest_R * fan_out_R).sum())
    return least_s <= latest_s * np.finfo(np.float64).eps
