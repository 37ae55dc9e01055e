"""Estimates of a placement's seconds, one pass over its ops: the cheapest fidelity.

Ops are placed one by one, in the order of their priority, behind the queues of devices and links
(links.py). What differs from an execution: nothing overtakes, neither on a device nor on a link.
Shape suffixes: V ops, R regions, D devices.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.compiled import compiled
from doppler.problem import Problem, ProblemArrays
from doppler.simulator.links import Queues, empty_queues, make_queues, place_in_queues
from doppler.simulator.session import SimulatorSession
from doppler.simulator.state import DEVICE, TASK, memory_can_lack, output_bytes
from doppler.trace import Contention, ExecutionRules


class EstimateState(NamedTuple):
    """Buffers of one estimate, reused by the next; after it ``tasks`` holds its schedule."""

    tasks: NDArray[np.void]  # TASK [V]
    devices: NDArray[np.void]  # DEVICE [D]
    queues: Queues
    order: NDArray[np.int64]  # [V] op by priority
    unread: NDArray[np.int64]  # [R] readers that are not placed
    limited: bool  # whether memory can be short at all


def open_estimates(
    problem: Problem, contention: Contention = "fifo", *, limited: bool = True
) -> SimulatorSession:
    """A session whose seconds are estimates: its evaluations are no executions.

    Priorities are to be rankings in which no op comes before its producers, else it tells inf. Its
    peaks are those of ops that run one by one. contention: with none, transfers wait for nothing.
    limited: memory counts.
    """
    waits = contention != "none"
    return SimulatorSession(
        problem=problem,
        engine=estimate,
        execution=ExecutionRules(contention=contention, queue="priority"),
        noise=0.0,
        make_state=partial(_make_state, waits=waits, limited=limited),
    )


def _make_state(p: ProblemArrays, *, waits: bool, limited: bool) -> EstimateState:
    num_ops, num_devices = p.op_seconds.shape
    return EstimateState(
        tasks=np.zeros(num_ops, TASK),
        devices=np.zeros(num_devices, DEVICE),
        queues=make_queues(p, waits=waits),
        order=np.zeros(num_ops, np.int64),
        unread=np.zeros(len(p.size), np.int64),
        limited=limited and memory_can_lack(p),
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
    if state.limited:
        _bring_inputs(p, device_V, state)
    for v in state.order:
        d = device_V[v]
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            if queues.finish[p.region_src[p.reads[i]]] < 0.0:
                return np.inf
        if state.limited:
            _bring(p, state, v, d)
        tasks[v].start = place_in_queues(p, queues, v, d)
        tasks[v].finish = queues.finish[v]
        tasks[v].resource = d
        makespan = max(makespan, queues.finish[v])
        if state.limited:
            _give_back(p, state, v)
    return makespan


@compiled
def _bring_inputs(p, device_V, state):
    """Every device holds the inputs that its ops need, from the beginning."""
    for i in range(len(p.input_bytes)):
        for d in range(len(state.devices)):
            for j in range(p.input_ptr[i], p.input_ptr[i + 1]):
                if device_V[p.input_consumers[j]] == d:
                    state.devices[d].memory += p.input_bytes[i]
                    break
    for d in range(len(state.devices)):
        state.devices[d].peak = state.devices[d].memory
    for r in range(len(state.unread)):
        state.unread[r] = p.consumer_ptr[r + 1] - p.consumer_ptr[r]


@compiled
def _bring(p, state, v, d):
    """What op v reads and what it makes take their room on device d."""
    held, queues = state.devices, state.queues
    held[d].memory += output_bytes(p, v)
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        if queues.device[p.region_src[r]] != d and queues.arrival[r, d] < 0.0:
            held[d].memory += p.region_bytes[r]
    held[d].peak = max(held[d].peak, held[d].memory)


@compiled
def _give_back(p, state, v):
    """Regions that all have read, v the last, are kept nowhere any more."""
    held, queues = state.devices, state.queues
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        state.unread[r] -= 1
        if state.unread[r] == 0:
            for d in range(len(held)):
                if queues.device[p.region_src[r]] == d or queues.arrival[r, d] >= 0.0:
                    held[d].memory -= p.region_bytes[r]
