"""Compiled: the placement process, its candidates and transitions.

An episode places all V ops, one per step. Candidates are ops whose producers are all placed.
Placing op v on device d fixes its estimated start: the earliest time at which d is free and v's
inputs can be there, without contention. simulator/link_kernels.py has the estimate with contention.
features_kernels.py computes what policies see.

Dimensions: V ops, D devices, L levels. Indices: v op, r region, d device, i position in a list, k
diffusion kernel.

Source: DOPPLER (Yao et al., ICLR 2026).
"""

from doppler.baselines.free_memory_kernels import (
    release_read_regions,
    reset_free_memory,
    take_memory,
)
from doppler.env.episode import (
    LAST_DEVICE,
    LAST_OP,
    NUM_CANDIDATES,
    NUM_KERNELS,
    NUM_READING,
    NUM_RELEASED,
    STEP,
)
from doppler.env.ready_kernels import empty_ready_queues
from doppler.problem.transfer_kernels import move_seconds
from doppler.simulator.link_kernels import empty_queues, place_in_queues, try_start
from doppler.support.compiled import compiled
from doppler.support.compiled.heap import heap_pop, heap_push


@compiled
def reset(problem, episode):
    """Begin an episode: nothing is placed, and the sources are the candidates.

    Args:
        problem: ProblemArrays.
        episode: its state, episode.Episode.
    """
    num_ops, num_devices = problem.op_seconds.shape
    empty_queues(episode.queues)
    empty_ready_queues(episode.ready)
    if episode.memory.limited:
        reset_free_memory(problem, episode.memory, False)
    episode.status[NUM_CANDIDATES] = 0
    episode.status[NUM_RELEASED] = 0
    for v in range(num_ops):
        op = episode.ops[v]
        op.device = -1
        op.pending = problem.read_ptr[v + 1] - problem.read_ptr[v]
        op.born = 0
        op.largest_device = -1
        op.last_producer = -1
        op.largest = -1.0
        op.finish = 0.0
        op.placed_in = 0.0
        episode.home[v] = -1
        if op.pending == 0:
            _release(episode, v)
        for d in range(num_devices):
            op_on_device = episode.on_device[v, d]
            op_on_device.data_ready = 0.0
            op_on_device.incoming = 0.0
            op_on_device.compute = 0.0
            op_on_device.first_start = 0.0
            op_on_device.last_end = -1.0
            op_on_device.asked = -1
            for k in range(NUM_KERNELS):
                if (
                    episode.affinity[v, d, k] != 0.0
                ):  # large graphs have none, and get no memory for it
                    episode.affinity[v, d, k] = 0.0
    for d in range(num_devices):
        episode.devices[d].available = 0.0
        episode.devices[d].load = 0.0
        episode.devices[d].num_ops = 0
        for level in range(len(episode.level_load)):
            episode.level_load[level, d] = 0.0
    episode.bound[:] = 0.0
    episode.status[STEP] = 0
    episode.status[NUM_READING] = 0
    episode.status[LAST_OP] = -1
    episode.status[LAST_DEVICE] = -1


@compiled
def _release(episode, v):
    """Make op v a candidate."""
    episode.released[episode.status[NUM_RELEASED]] = v
    episode.status[NUM_RELEASED] += 1
    episode.candidates[episode.status[NUM_CANDIDATES]] = v
    episode.position[v] = episode.status[NUM_CANDIDATES]
    episode.status[NUM_CANDIDATES] += 1


@compiled
def queued_start(problem, episode, v, d):
    """Return when candidate v can start on device d with queues of transfers, in seconds.

    The result is kept, because a step changes only the starts on one device.

    Args:
        problem: ProblemArrays.
        episode: its state, episode.Episode.
        v: op.
        d: device.
    """
    op_on_device = episode.on_device[v, d]
    if op_on_device.asked < episode.queues.changed[d]:
        op_on_device.queued_start = try_start(problem, episode.queues, v, d)
        op_on_device.asked = episode.queues.num_placed[0]
    return op_on_device.queued_start


@compiled
def earliest_start(episode, v, d):
    """Return when device d is free and op v's data can be there, without contention.

    Args:
        episode: its state, episode.Episode.
        v: op.
        d: device.
    """
    return max(episode.devices[d].available, episode.on_device[v, d].data_ready)


@compiled
def place(problem, view, episode, index, d):
    """Place the candidate at ``index`` of the list on device d, and update its consumers.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        index: position in ``episode.candidates``.
        d: device.
    """
    v = episode.candidates[index]
    episode.status[NUM_CANDIDATES] -= 1
    last = episode.candidates[episode.status[NUM_CANDIDATES]]
    episode.candidates[index] = last
    episode.position[last] = index
    seconds, start = problem.op_seconds[v, d], earliest_start(episode, v, d)
    episode.ops[v].device = d
    episode.ops[v].finish = start + seconds
    free = episode.queues.device_free[d]
    queued = place_in_queues(problem, episode.queues, v, d)
    if episode.memory.limited:
        _occupy_memory(problem, episode, v, d, queued)
    episode.bound[0] = max(episode.bound[0], episode.queues.finish[v] + view.least_after_s[v])
    episode.bound[1] += episode.queues.device_free[d] - free - view.least_s[v]
    episode.devices[d].available = start + seconds
    episode.devices[d].load += seconds
    episode.devices[d].num_ops += 1
    if episode.home[view.group[v]] < 0:
        episode.home[view.group[v]] = d
    episode.level_load[view.depth[v], d] += seconds
    episode.status[STEP] += 1
    episode.status[LAST_OP] = v
    episode.status[LAST_DEVICE] = d
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            _update_consumer(problem, view, episode, problem.consumers[i], r, v, start)
    for i in range(view.kernel_ptr[v], view.kernel_ptr[v + 1]):
        for k in range(NUM_KERNELS):
            episode.affinity[view.kernel_col[i], d, k] += view.kernel[i, k]


@compiled
def _occupy_memory(problem, episode, v, d, start):
    """Take memory for op v on device d from ``start`` on; free that of ops ended by then."""
    take_memory(problem, episode.memory, v, d)
    num = episode.status[NUM_READING]
    while num > 0 and episode.reading[0].key <= start:
        release_read_regions(problem, episode.memory, heap_pop(episode.reading, 0, num))
        num -= 1
    heap_push(episode.reading, 0, num, episode.queues.finish[v], v)
    episode.status[NUM_READING] = num + 1


@compiled
def is_late(view, episode):
    """Whether the episode is sure to take at least ``limit_s``, with queues of transfers.

    No unplaced op starts before its device is free, or before its producers have ended.
    """
    bound = max(episode.bound[0], (episode.bound[1] + view.least_work_s) / len(episode.devices))
    return bound >= view.limit_s * (1.0 + 1e-9)


@compiled
def _update_consumer(problem, view, episode, consumer, r, v, start):
    """Update op c, which reads region r, after its producer v was placed and has a start."""
    d, finish, weight = episode.ops[v].device, episode.ops[v].finish, view.transfer[r]
    for other in range(len(episode.devices)):
        arrival = finish
        if other != d:
            arrival += move_seconds(problem, r, d, other)
        if arrival > episode.on_device[consumer, other].data_ready:
            episode.on_device[consumer, other].data_ready = arrival
    op_on_device, op = episode.on_device[consumer, d], episode.ops[consumer]
    if op_on_device.last_end < 0.0 or start < op_on_device.first_start:
        op_on_device.first_start = start
    op_on_device.last_end = max(op_on_device.last_end, finish)
    op_on_device.incoming += weight
    if op.last_producer != v:
        op.last_producer = v
        op_on_device.compute += problem.op_seconds[v, d]
    op.placed_in += weight
    if weight > op.largest:
        op.largest = weight
        op.largest_device = d
    op.pending -= 1
    if op.pending == 0:
        op.born = episode.status[STEP]
        _release(episode, consumer)
