"""Compiled: the semantics of the published simulator, with its order of simultaneous events.

Transfers never contend, and a device serves ops in the order in which they become ready. So when
an op starts, all that follows from it is known: when it ends, and when its result arrives where it
is read. The engine therefore goes from start to start; ends and arrivals are no events of its own.

What is left to decide is the order of what is simultaneous, and it is that of the published event
queue, which serves the events of one instant first in, first out. There the end of an op lets a
waiting op start one event later, an arrival lets its reader start two events later, and a reader
on the op's own device starts four events later. So of the ops that start at one instant those
that had to wait come first, in the order in which the ops before them end; then those whose last
input arrives, in the order in which these inputs were sent; then those whose last input was made
on their device. Ops that end at one instant do so in the order in which they started, and send in
the order of their edges.

An op of no time ends within the instant in which it starts, where only one event after the other
can tell what comes first: a placement with such an op is left to published_instants_kernels.py.

Vocabulary and dimensions as in state.py. Indices: v and u ops, r region, e edge, d device, k task.

Source: released code of DOPPLER (Yao et al., ICLR 2026), semantics as observed; the event
mechanism is that of SimPy. Time is counted, as there, in whole costs of 1e-10 s: in seconds, sums
of the same costs in another order would no longer be simultaneous. With ``queue=priority`` a
device takes the waiting op of the best priority instead of the one that asked first.
"""

import numpy as np

from doppler.problem.transfer_kernels import move_seconds
from doppler.simulator import published_instants_kernels
from doppler.simulator.copy_kernels import list_all_transfers
from doppler.simulator.published_instants_kernels import COSTS_PER_SECOND
from doppler.simulator.queue_kernels import insert, remove
from doppler.simulator.state import QUEUE_PRIORITY
from doppler.simulator.state_kernels import by_key, open_ops, transfer_seconds
from doppler.support.compiled import compiled

EDGE_BITS = 32


@compiled
def simulate(problem, rules, device_V, priority_V, seed, state):
    """Run one placement; it leaves times in costs and no transfers, see `complete`.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        seed: of jitter.
        state: State of the engine; the schedule is left in ``state.tasks``.

    Returns:
        The makespan in seconds; inf if an op cannot run where it is placed.
    """
    tasks, arrivals, starts = state.tasks, state.arrivals, state.starts
    num_ops = len(device_V)
    if not _open(problem, rules, device_V, priority_V, seed, state):
        return published_instants_kernels.simulate(problem, rules, seed, state)
    num_started, makespan = 0, 0.0
    while True:
        d = np.uint32(_first_to_start(tasks, arrivals, starts))
        now = starts[d].at
        if now == np.inf:
            return makespan / COSTS_PER_SECOND if num_started == num_ops else np.inf
        v = _take_op(rules, now, d, tasks, arrivals, starts)
        num_started += 1
        finish = now + tasks[v].finish
        tasks[v].start = now
        tasks[v].finish = finish
        tasks[v].key = num_started
        makespan = max(makespan, finish)
        _take_stream(rules, v, d, tasks, starts, np.uint32(num_ops))
        _look_ahead(d, arrivals, starts)
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
                reader = np.uint32(problem.consumers[e])
                dst = tasks[reader].resource
                seconds = transfer_seconds(problem, rules, seed, r, d, dst)
                cost = np.rint(seconds * COSTS_PER_SECOND)
                at = finish + (cost if dst != d else 0.0)
                last_at, last_sent = arrivals[reader].at, arrivals[reader].sent
                if at > last_at or (at == last_at and finish >= last_sent):
                    arrivals[reader].at = at
                    arrivals[reader].sent = finish
                    arrivals[reader].order = (num_started << EDGE_BITS) + e
                tasks[reader].pending -= 1
                if tasks[reader].pending == 0:
                    _expect(reader, dst, arrivals, starts)
                    _look_ahead(dst, arrivals, starts)


@compiled
def complete(problem, device_V, priority_V, state):
    """Add transfers, and convert all times to seconds, after `simulate` without jitter.

    Without contention the edges of one region to one device coincide: they are one transfer.

    Args:
        problem: ProblemArrays.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        state: as `simulate` has left it.
    """
    tasks, num_ops = state.tasks, len(device_V)
    num_tasks = num_ops + list_all_transfers(problem, state)
    for k in range(num_ops, num_tasks):
        r, src, dst = tasks[k].number, tasks[k].source, tasks[k].destination
        seconds = move_seconds(problem, r, src, dst)
        tasks[k].start = tasks[problem.region_src[r]].finish
        tasks[k].finish = tasks[k].start + np.rint(seconds * COSTS_PER_SECOND)
        tasks[k].stream = 0
    for k in range(num_tasks):
        tasks[k].start /= COSTS_PER_SECOND
        tasks[k].finish /= COSTS_PER_SECOND


@compiled
def _open(problem, rules, device_V, priority_V, seed, state):
    """Prepare a run; return False if an op takes no time."""
    tasks, arrivals, starts = state.tasks, state.arrivals, state.starts
    num_ops = len(device_V)
    none = np.uint32(num_ops)
    all_take_time = True
    open_ops(problem, rules, device_V, priority_V, seed, tasks)
    for d in range(len(starts)):
        starts[d].free = 0.0
        starts[d].streams = 0
        starts[d].coming = none
        starts[d].waiting = none
        starts[d].running = none
    for v in range(num_ops):
        cost = np.rint(tasks[v].finish * COSTS_PER_SECOND)
        all_take_time &= cost > 0.0
        tasks[v].finish = cost
        arrivals[v].at = 0.0
        arrivals[v].sent = 0.0
        arrivals[v].order = v
    arrivals[num_ops].at = np.inf
    for v in range(num_ops):
        if tasks[v].pending == 0:
            _expect(np.uint32(v), tasks[v].resource, arrivals, starts)
    for d in range(len(starts)):
        _look_ahead(d, arrivals, starts)
    return all_take_time


@compiled
def _first_to_start(tasks, arrivals, starts):
    """The device that starts an op next."""
    first, now, tied = 0, starts[0].at, False
    for d in range(1, len(starts)):
        at = starts[d].at
        tied = (tied and at >= now) or at == now
        first = d if at < now else first
        now = at if at < now else now
    if tied:
        for d in range(first + 1, len(starts)):
            if starts[d].at == now and _starts_before(tasks, arrivals, starts, d, first):
                first = d
    return first


@compiled
def _starts_before(tasks, arrivals, starts, other, d):
    """Whether, of two devices that start an op at the same instant, ``other`` does so before d."""
    other_waits, d_waits = _has_waiting(other, arrivals, starts), _has_waiting(d, arrivals, starts)
    if other_waits and d_waits:
        return _ends_before(tasks, starts[other].running, starts[d].running)
    if other_waits or d_waits:
        return other_waits
    return _arrives_before(arrivals, starts[other].coming, starts[d].coming)


@compiled
def _has_waiting(d, arrivals, starts):
    """Whether the op that device d starts next has to wait for the device."""
    none = len(arrivals) - 1
    return (starts[d].waiting != none) | (arrivals[starts[d].coming].at < starts[d].free)


@compiled
def _look_ahead(d, arrivals, starts):
    """When device d starts its next op, as far as is known; inf if there is none."""
    at = arrivals[starts[d].coming].at
    starts[d].at = starts[d].free if _has_waiting(d, arrivals, starts) else at


@compiled
def _expect(v, d, arrivals, starts):
    """Record when the last input of op v arrives on device d."""
    none = np.uint32(len(arrivals) - 1)
    starts[d].coming = insert(arrivals, starts[d].coming, v, none, _arrives_before)


@compiled
def _take_op(rules, now, d, tasks, arrivals, starts):
    """Take the op that device d starts now."""
    none = np.uint32(len(arrivals) - 1)
    if rules.queue == QUEUE_PRIORITY:
        while arrivals[starts[d].coming].at < now:
            v = starts[d].coming
            starts[d].coming = remove(arrivals, v, none, _arrives_before)
            starts[d].waiting = insert(tasks, starts[d].waiting, v, none, by_key)
        v = starts[d].waiting
        if v != none:
            starts[d].waiting = remove(tasks, v, none, by_key)
            return v
    v = starts[d].coming
    starts[d].coming = remove(arrivals, v, none, _arrives_before)
    return v


@compiled
def _take_stream(rules, v, d, tasks, starts, none):
    """Start op v on the stream of device d that is free first."""
    if starts[d].streams < rules.streams:
        tasks[v].stream = starts[d].streams
        starts[d].streams += 1
    else:
        before = starts[d].running
        tasks[v].stream = tasks[before].stream
        starts[d].running = remove(tasks, before, none, _ends_before)
    starts[d].running = insert(tasks, starts[d].running, v, none, _ends_before)
    if starts[d].streams == rules.streams:
        starts[d].free = tasks[starts[d].running].finish


@compiled
def _arrives_before(arrivals, u, v):
    """Whether the last input of op u arrives before that of op v."""
    return arrivals[u].at < arrivals[v].at or (
        arrivals[u].at == arrivals[v].at
        and (
            arrivals[u].sent < arrivals[v].sent
            or (arrivals[u].sent == arrivals[v].sent and arrivals[u].order < arrivals[v].order)
        )
    )


@compiled
def _ends_before(tasks, u, v):
    """Whether op u ends before op v; both have started."""
    return tasks[u].finish < tasks[v].finish or (
        tasks[u].finish == tasks[v].finish and tasks[u].key < tasks[v].key
    )
