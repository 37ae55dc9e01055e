"""Compiled: estimates of a placement's seconds by one pass over its ops.

Ops are placed one by one, in the order of their priority, behind the queues of devices and links
(link_kernels.py). The difference from an execution is that nothing overtakes, neither on a device
nor on a link.

Dimensions: V ops, R regions, D devices. Indices: v op, r region, d device, i position in a list.
"""

import numpy as np

from doppler.problem.transfer_kernels import move_seconds
from doppler.simulator.copy_kernels import allocate, load_inputs
from doppler.simulator.link_kernels import empty_queues, place_in_queues
from doppler.support.compiled import compiled

# Number of equal parts of the makespan for which memory in use is recorded.
NUM_PARTS = 512


@compiled
def estimate(problem, rules, device_V, priority_V, seed, state):
    """Return the estimated makespan in seconds; inf if an op comes before one of its producers.

    Args:
        problem: ProblemArrays.
        rules: ignored.
        device_V: device of each op.
        priority_V: ranks of the ops, 0 first.
        seed: ignored.
        state: EstimateState; its tasks hold the schedule, its devices the peaks.
    """
    queues, tasks, makespan = state.queues, state.tasks, 0.0
    for v in range(len(device_V)):
        state.order[priority_V[v]] = v
        queues.finish[v] = -1.0
    empty_queues(queues)
    for d in range(len(state.devices)):
        state.devices[d].memory = 0.0
        state.devices[d].peak = 0.0
    for v in state.order:
        d = device_V[v]
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            if queues.finish[problem.region_src[problem.reads[i]]] < 0.0:
                return np.inf
        tasks[v].start = place_in_queues(problem, queues, v, d)
        tasks[v].finish = queues.finish[v]
        tasks[v].resource = d
        makespan = max(makespan, queues.finish[v])
    if queues.sender:  # on devices that have sent meanwhile, ops end later than recorded
        for d in range(len(state.devices)):
            makespan = max(makespan, queues.device_free[d])
    if state.limited and makespan < np.inf:
        _find_peaks(problem, device_V, state, makespan)
    return makespan


@compiled
def _find_peaks(problem, device_V, state, makespan):
    """Find the peak memory of each device from the times of ops and transfers."""
    load_inputs(problem, device_V, state.devices)
    state.in_use[:, :] = 0.0
    scale = NUM_PARTS / makespan if makespan > 0.0 else 0.0
    for v in range(len(device_V)):
        begin = int(state.tasks[v].start * scale)
        state.in_use[device_V[v], min(begin, NUM_PARTS - 1)] += problem.sink_bytes[v]
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            _note_uses(problem, state, r, device_V, scale)
    for d in range(len(state.devices)):
        for part in range(NUM_PARTS):
            allocate(state.devices, d, state.in_use[d, part])


@compiled
def _note_uses(problem, state, r, device_V, scale):
    """Record for region r and its copies when each is made and when it is used last."""
    last, queues, v = state.last_use, state.queues, problem.region_src[r]
    last[:] = -1.0
    for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
        reader = problem.consumers[i]
        last[device_V[reader]] = max(last[device_V[reader]], queues.finish[reader])
    for d in range(len(last)):
        if d != device_V[v] and last[d] >= 0.0:
            arrival = queues.arrival[r, d]
            sent = arrival - move_seconds(problem, r, device_V[v], d)
            _hold(state, d, sent * scale, last[d] * scale, problem.region_bytes[r])
            last[device_V[v]] = max(last[device_V[v]], arrival)
    made, used = state.tasks[v].start, last[device_V[v]]
    _hold(state, device_V[v], made * scale, used * scale, problem.region_bytes[r])


@compiled
def _hold(state, d, begin, end, num_bytes):
    """Add bytes to device d in the parts of time from ``begin`` up to the one that has ``end``."""
    first = min(int(begin), NUM_PARTS - 1)
    state.in_use[d, first] += num_bytes
    state.in_use[d, min(max(int(end), first + 1), NUM_PARTS)] -= num_bytes
