"""The placement process, compiled: candidates and transitions.

An episode places all V ops, one a step. Candidates are the ops whose producers are all placed.
Placing op v on device d fixes its estimated start, the earliest at which d is free and v's inputs
could be there, without contention; simulator/links.py has the estimate with it. What policies see
of it is in features.py. Shape suffixes: V ops, D devices, L levels.

Source: DOPPLER (Yao et al., ICLR 2026).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.room import Room, empty_room, give_back, make_room, take_room
from doppler.env.problem_view import DIFFUSIONS, ViewArrays
from doppler.env.ready import ReadyQueues, empty_ready_queues, make_ready_queues
from doppler.problem.arrays import ProblemArrays, move_seconds
from doppler.simulator.links import Queues, empty_queues, make_queues, place_in_queues, try_start
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push

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
    """Buffers of one episode, reused by the next."""

    ops: NDArray[np.void]  # [V]
    on_device: NDArray[np.void]  # [V, D]
    devices: NDArray[np.void]  # [D]
    queues: Queues
    room: Room
    reading: NDArray[np.void]  # ENTRY [V] where room is limited a heap: placed ops, by ends
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


def make_episode(p: ProblemArrays, view: ViewArrays) -> Episode:
    """Buffers for episodes of one problem."""
    num_ops, num_devices = p.op_seconds.shape
    room = make_room(p, view.room)
    return Episode(
        ops=np.zeros(num_ops, _OP),
        on_device=np.zeros((num_ops, num_devices), _OP_ON_DEVICE),
        devices=np.zeros(num_devices, _DEVICE),
        queues=make_queues(p),
        room=room,
        reading=np.zeros(num_ops if room.limited else 0, ENTRY),
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


@compiled
def reset(p, e):
    """Begin an episode: nothing is placed, the sources are the candidates."""
    num_ops, num_devices = p.op_seconds.shape
    empty_queues(e.queues)
    empty_ready_queues(e.ready)
    if e.room.limited:
        empty_room(p, e.room, False)
    e.status[NUM_CANDIDATES] = 0
    e.status[NUM_RELEASED] = 0
    for v in range(num_ops):
        op = e.ops[v]
        op.device = -1
        op.pending = p.read_ptr[v + 1] - p.read_ptr[v]
        op.born = 0
        op.largest_device = -1
        op.last_producer = -1
        op.largest = -1.0
        op.finish = 0.0
        op.placed_in = 0.0
        e.home[v] = -1
        if op.pending == 0:
            _release(e, v)
        for d in range(num_devices):
            on = e.on_device[v, d]
            on.data_ready = 0.0
            on.incoming = 0.0
            on.compute = 0.0
            on.first_start = 0.0
            on.last_end = -1.0
            on.asked = -1
            for k in range(NUM_KERNELS):
                if e.affinity[v, d, k] != 0.0:  # large graphs have none, and get no memory for it
                    e.affinity[v, d, k] = 0.0
    for d in range(num_devices):
        e.devices[d].available = 0.0
        e.devices[d].load = 0.0
        e.devices[d].num_ops = 0
        for level in range(len(e.level_load)):
            e.level_load[level, d] = 0.0
    e.bound[:] = 0.0
    e.status[STEP] = 0
    e.status[NUM_READING] = 0
    e.status[LAST_OP] = -1
    e.status[LAST_DEVICE] = -1


@compiled
def _release(e, v):
    """Op v becomes a candidate."""
    e.released[e.status[NUM_RELEASED]] = v
    e.status[NUM_RELEASED] += 1
    e.candidates[e.status[NUM_CANDIDATES]] = v
    e.position[v] = e.status[NUM_CANDIDATES]
    e.status[NUM_CANDIDATES] += 1


@compiled
def queued_start(p, e, v, d):
    """When candidate v can start on device d behind queues.

    It is remembered: from step to step only starts on one device change.
    """
    on = e.on_device[v, d]
    if on.asked < e.queues.changed[d]:
        on.queued_start = try_start(p, e.queues, v, d)
        on.asked = e.queues.num_placed[0]
    return on.queued_start


@compiled
def earliest_start(e, v, d):
    """When device d is free and what op v reads could be there, without contention."""
    return max(e.devices[d].available, e.on_device[v, d].data_ready)


@compiled
def place(p, w, e, index, d):
    """Place the candidate at ``index`` of the list on device d; its consumers learn of it."""
    v = e.candidates[index]
    e.status[NUM_CANDIDATES] -= 1
    last = e.candidates[e.status[NUM_CANDIDATES]]
    e.candidates[index] = last
    e.position[last] = index
    seconds, start = p.op_seconds[v, d], earliest_start(e, v, d)
    e.ops[v].device = d
    e.ops[v].finish = start + seconds
    free = e.queues.device_free[d]
    queued = place_in_queues(p, e.queues, v, d)
    if e.room.limited:
        _take_room(p, e, v, d, queued)
    e.bound[0] = max(e.bound[0], e.queues.finish[v] + w.least_after_s[v])
    e.bound[1] += e.queues.device_free[d] - free - w.least_s[v]
    e.devices[d].available = start + seconds
    e.devices[d].load += seconds
    e.devices[d].num_ops += 1
    if e.home[w.group[v]] < 0:
        e.home[w.group[v]] = d
    e.level_load[w.depth[v], d] += seconds
    e.status[STEP] += 1
    e.status[LAST_OP] = v
    e.status[LAST_DEVICE] = d
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            _tell_consumer(p, w, e, p.consumers[i], r, v, start)
    for i in range(w.kernel_ptr[v], w.kernel_ptr[v + 1]):
        for k in range(NUM_KERNELS):
            e.affinity[w.kernel_col[i], d, k] += w.kernel[i, k]


@compiled
def _take_room(p, e, v, d, start):
    """Op v takes room on device d, from ``start`` on; what has ended by then gives its back."""
    take_room(p, e.room, v, d)
    num = e.status[NUM_READING]
    while num > 0 and e.reading[0].key <= start:
        give_back(p, e.room, heap_pop(e.reading, 0, num))
        num -= 1
    heap_push(e.reading, 0, num, e.queues.finish[v], v)
    e.status[NUM_READING] = num + 1


@compiled
def is_late(w, e):
    """Whether the episode is sure to take as long as ``limit_s``, behind queues.

    No op after those placed starts before its device is free, or its producers have ended.
    """
    bound = max(e.bound[0], (e.bound[1] + w.least_work_s) / len(e.devices))
    return bound >= w.limit_s * (1.0 + 1e-9)


@compiled
def _tell_consumer(p, w, e, c, r, v, start):
    """Op c, which reads region r, learns that its producer v is placed and when it starts."""
    d, finish, weight = e.ops[v].device, e.ops[v].finish, w.transfer[r]
    for other in range(len(e.devices)):
        arrival = finish
        if other != d:
            arrival += move_seconds(p, r, d, other)
        if arrival > e.on_device[c, other].data_ready:
            e.on_device[c, other].data_ready = arrival
    on, op = e.on_device[c, d], e.ops[c]
    if on.last_end < 0.0 or start < on.first_start:
        on.first_start = start
    on.last_end = max(on.last_end, finish)
    on.incoming += weight
    if op.last_producer != v:
        op.last_producer = v
        on.compute += p.op_seconds[v, d]
    op.placed_in += weight
    if weight > op.largest:
        op.largest = weight
        op.largest_device = d
    op.pending -= 1
    if op.pending == 0:
        op.born = e.status[STEP]
        _release(e, c)
