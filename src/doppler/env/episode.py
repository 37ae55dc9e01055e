"""The state of one placement episode: what is placed, what can be placed next, and when it starts.

Shape suffixes: V ops, D devices, L levels.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.free_memory_kernels import FreeMemory, make_free_memory
from doppler.env.problem_view import DIFFUSIONS, ViewArrays
from doppler.env.ready_kernels import ReadyQueues, make_ready_queues
from doppler.problem.arrays import ProblemArrays
from doppler.simulator.link_kernels import Queues, make_queues
from doppler.support.compiled.heap import ENTRY

NUM_KERNELS = len(DIFFUSIONS)
_OP = np.dtype(
    [
        ("device", np.int32),  # -1 until placed
        ("pending", np.int32),  # regions whose producer is not placed
        ("born", np.int32),  # step at which the op became a candidate
        ("largest_device", np.int32),  # device of the producer with the largest transfer
        ("last_producer", np.int32),  # the one placed last; it may send several regions
        ("largest", np.float64),
        ("finish", np.float64),
        ("placed_in", np.float64),  # transfer seconds of the producers placed so far
    ]
)
_OP_ON_DEVICE = np.dtype(
    [
        ("data_ready", np.float64),  # when all placed producers' regions could be there
        ("incoming", np.float64),  # transfer seconds of the producers on the device
        ("compute", np.float64),  # of the producers on the device
        ("first_start", np.float64),
        ("last_end", np.float64),  # -1 until there is a producer
        ("queued_start", np.float64),  # of the op behind queues,
        ("asked", np.int64),  # when so many ops were placed; -1 before that
    ]
)
_DEVICE = np.dtype(
    [
        ("available", np.float64),
        ("load", np.float64),
        ("num_ops", np.int64),
    ]
)


class Episode(NamedTuple):
    """Buffers of one episode, which the next episode reuses."""

    ops: NDArray[np.void]  # [V]
    on_device: NDArray[np.void]  # [V, D]
    devices: NDArray[np.void]  # [D]
    queues: Queues
    memory: FreeMemory
    reading: NDArray[np.void]  # ENTRY [V] where memory is limited a heap: placed ops, by ends
    affinity: NDArray[np.float32]  # [V, D, kernels]
    level_load: NDArray[np.float64]  # [L, D]
    candidates: NDArray[np.int64]  # [V]
    position: NDArray[np.int64]  # [V] of a candidate in that list
    released: NDArray[np.int64]  # [V] all that ever were candidates, the first first
    ready: ReadyQueues
    home: NDArray[np.int64]  # [V] device of each group, -1 until one is chosen
    key: NDArray[np.float64]  # [V] scratch: of candidates, to compare them by
    status: NDArray[np.int64]  # [6] see below
    bound: NDArray[np.float64]  # [2] below the seconds of all ops: of paths; of devices, summed up


NUM_CANDIDATES, STEP, LAST_OP, LAST_DEVICE, NUM_RELEASED, NUM_READING = range(6)


def make_episode(arrays: ProblemArrays, view: ViewArrays) -> Episode:
    """Allocate buffers for episodes on one problem."""
    num_ops, num_devices = arrays.op_seconds.shape
    memory = make_free_memory(arrays, view.memory_share)
    return Episode(
        ops=np.zeros(num_ops, _OP),
        on_device=np.zeros((num_ops, num_devices), _OP_ON_DEVICE),
        devices=np.zeros(num_devices, _DEVICE),
        queues=make_queues(arrays),
        memory=memory,
        reading=np.zeros(num_ops if memory.limited else 0, ENTRY),
        affinity=np.zeros((num_ops, num_devices, NUM_KERNELS), np.float32),
        level_load=np.zeros((len(view.level_work), num_devices)),
        candidates=np.zeros(num_ops, np.int64),
        position=np.zeros(num_ops, np.int64),
        released=np.zeros(num_ops, np.int64),
        ready=make_ready_queues(num_ops, num_devices),
        home=np.zeros(num_ops, np.int64),
        key=np.zeros(num_ops),
        status=np.zeros(6, np.int64),
        bound=np.zeros(2),
    )
