"""Estimates of a placement's seconds, one pass over its ops: the cheapest fidelity.

Ops are placed one by one, in the order of their priority, behind the queues of devices and links
(links.py). What differs from an execution: nothing overtakes, neither on a device nor on a link.
Shape suffixes: V ops, R regions, D devices.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem, ProblemArrays
from doppler.problem.arrays import move_seconds
from doppler.simulator.copies import allocate, load_inputs
from doppler.simulator.links import Queues, empty_queues, make_queues, place_in_queues
from doppler.simulator.session import SimulatorSession
from doppler.simulator.state import DEVICE, TASK, memory_can_lack
from doppler.support.compiled import compiled
from doppler.trace import Contention, ExecutionRules

# Of the makespan: memory in use is known for each.
_PARTS = 512


class EstimateState(NamedTuple):
    """Buffers of one estimate, reused by the next; after it ``tasks`` holds its schedule."""

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
    """A session whose seconds are estimates: its evaluations are no executions.

    Priorities are to be rankings in which no op comes before its producers, else it tells inf. Its
    peaks are those of the schedule that it estimates, by parts of its time. contention: with none,
    transfers wait for nothing. limited: memory counts.
    """
    return SimulatorSession(
        problem=problem,
        engine=estimate,
        execution=ExecutionRules(contention=contention, queue="priority"),
        noise=0.0,
        make_state=partial(_make_state, contention=contention, limited=limited),
    )


def _make_state(p: ProblemArrays, *, contention: Contention, limited: bool) -> EstimateState:
    num_ops, num_devices = p.op_seconds.shape
    return EstimateState(
        tasks=np.zeros(num_ops, TASK),
        devices=np.zeros(num_devices, DEVICE),
        queues=make_queues(p, contention),
        order=np.zeros(num_ops, np.int64),
        limited=limited and memory_can_lack(p),
        in_use=np.zeros((num_devices, _PARTS + 1)),
        last_use=np.zeros(num_devices),
    )


@compiled
def estimate(p, rules, device_V, priority_V, seed, state):
    """Makespan in seconds, as estimated; see session.SimulatorSession."""
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
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            if queues.finish[p.region_src[p.reads[i]]] < 0.0:
                return np.inf
        tasks[v].start = place_in_queues(p, queues, v, d)
        tasks[v].finish = queues.finish[v]
        tasks[v].resource = d
        makespan = max(makespan, queues.finish[v])
    if queues.sender:  # ops end later than noted on devices that have sent meanwhile
        for d in range(len(state.devices)):
            makespan = max(makespan, queues.device_free[d])
    if state.limited and makespan < np.inf:
        _find_peaks(p, device_V, state, makespan)
    return makespan


@compiled
def _find_peaks(p, device_V, state, makespan):
    """The most that each device holds, by the times of ops and transfers."""
    load_inputs(p, device_V, state.devices)
    state.in_use[:, :] = 0.0
    scale = _PARTS / makespan if makespan > 0.0 else 0.0
    for v in range(len(device_V)):
        begin = int(state.tasks[v].start * scale)
        state.in_use[device_V[v], min(begin, _PARTS - 1)] += p.sink_bytes[v]
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            _note_uses(p, state, r, device_V, scale)
    for d in range(len(state.devices)):
        for part in range(_PARTS):
            allocate(state.devices, d, state.in_use[d, part])


@compiled
def _note_uses(p, state, r, device_V, scale):
    """Region r and its copies: from when they are made until the last use of each."""
    last, queues, v = state.last_use, state.queues, p.region_src[r]
    last[:] = -1.0
    for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
        c = p.consumers[i]
        last[device_V[c]] = max(last[device_V[c]], queues.finish[c])
    for d in range(len(last)):
        if d != device_V[v] and last[d] >= 0.0:
            there = queues.arrival[r, d]
            sent = there - move_seconds(p, r, device_V[v], d)
            _hold(state, d, sent * scale, last[d] * scale, p.region_bytes[r])
            last[device_V[v]] = max(last[device_V[v]], there)
    made, used = state.tasks[v].start, last[device_V[v]]
    _hold(state, device_V[v], made * scale, used * scale, p.region_bytes[r])


@compiled
def _hold(state, d, begin, end, num_bytes):
    """Device d holds so much in the parts from ``begin`` on, without the one that has ``end``."""
    first = min(int(begin), _PARTS - 1)
    state.in_use[d, first] += num_bytes
    state.in_use[d, min(max(int(end), first + 1), _PARTS)] -= num_bytes
