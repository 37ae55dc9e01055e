"""Compiled: the bulk-synchronous engine. Level by level, an exchange and a barrier before each.

A level is the set of ops at one depth. Before its ops start, every region that they read on a
foreign device, and that has not been moved there yet, is moved: in D - 1 rounds of pairwise
exchange, in round k device d sends one message to device (d + k) mod D; a message takes the link's
latency once and then the transfer time of its regions, and a round ends when its longest message
does. Then every device runs its ops of the level, one at a time, and the level ends when the last
device is done.

Vocabulary and dimensions as in state.py. Indices: v op, r region, d device, k transfer as a task, i
and j positions in lists.

Source: Valiant, "A bridging model for parallel computation", CACM 1990; pairwise exchange as in
Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005;
the comparison is that of DOPPLER (Yao et al., ICLR 2026).
"""

import numpy as np

from doppler.problem.transfer_kernels import sized_seconds
from doppler.simulator.copy_kernels import allocate, free_reads, list_all_transfers, load_inputs
from doppler.simulator.state_kernels import open_ops, output_bytes, transfer_draw
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import jitter


@compiled
def simulate(problem, rules, device_V, priority_V, seed, state):
    """Run one placement, level by level.

    Priorities do not matter: a barrier waits for the whole level in any order.

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
    tasks, devices, level_ops = state.tasks, state.devices, state.order
    num_ops = len(problem.op_seconds)
    open_ops(problem, rules, device_V, priority_V, seed, tasks)
    load_inputs(problem, device_V, devices)
    for k in range(num_ops, num_ops + list_all_transfers(problem, state)):
        tasks[k].pending = 1  # not moved yet
    num_listed = 0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            level_ops[num_listed] = v
            num_listed += 1
    begin, now = 0, 0.0
    while begin < num_listed:
        end = num_listed
        num_moves = _list_moves(problem, state, level_ops, begin, end)
        now = _exchange(problem, rules, seed, now, num_moves, state)
        now = _compute(problem, now, level_ops, begin, end, state)
        for i in range(begin, end):
            v = level_ops[i]
            for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
                for j in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
                    reader = problem.consumers[j]
                    tasks[reader].pending -= 1
                    if tasks[reader].pending == 0:
                        level_ops[num_listed] = reader
                        num_listed += 1
        begin = end
    return now if num_listed == num_ops else np.inf


@compiled
def _list_moves(problem, state, level_ops, begin, end):
    """Fill ``hops`` with the transfers that the ops level_ops[begin:end] still need."""
    num_ops, num_regions = len(problem.op_seconds), len(problem.size)
    num_moves = 0
    for i in range(begin, end):
        v = level_ops[i]
        for j in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            if state.copies[j] >= num_regions:
                k = num_ops + state.copies[j] - num_regions
                if state.tasks[k].pending > 0:
                    state.tasks[k].pending = 0
                    state.hops[num_moves] = k
                    num_moves += 1
    return num_moves


@compiled
def _exchange(problem, rules, seed, now, num_moves, state):
    """Make the listed transfers; return when the last round ends."""
    tasks, devices, moves = state.tasks, state.devices, state.hops
    num_devices = len(devices)
    for distance in range(1, num_devices):
        for d in range(num_devices):
            devices[d].first = now
        round_end = now
        for i in range(num_moves):
            k = moves[i]
            r, src, dst = tasks[k].number, tasks[k].source, tasks[k].destination
            if (np.int64(dst) - np.int64(src)) % num_devices != distance:
                continue
            seconds = sized_seconds(problem, r, src, dst)
            if devices[src].first == now:
                seconds += problem.latency_s[src, dst]
            if rules.transfer_noise > 0.0:
                seconds *= jitter(seed, transfer_draw(problem, r, dst), rules.transfer_noise)
            tasks[k].start = devices[src].first
            tasks[k].finish = devices[src].first + seconds
            tasks[k].stream = 0
            devices[src].first = tasks[k].finish
            round_end = max(round_end, tasks[k].finish)
            allocate(devices, dst, problem.region_bytes[r])
        now = round_end
    for i in range(num_moves):
        r, src = tasks[moves[i]].number, tasks[moves[i]].source
        state.uses[r] -= 1
        if state.uses[r] == 0:
            devices[src].memory -= problem.region_bytes[r]
    return now


@compiled
def _compute(problem, now, level_ops, begin, end, state):
    """Run a level's ops, one after another on each device; return when the last one ends."""
    tasks, devices = state.tasks, state.devices
    for d in range(len(devices)):
        devices[d].first = now
    level_end = now
    for i in range(begin, end):
        v = level_ops[i]
        d = tasks[v].resource
        tasks[v].stream = 0
        tasks[v].start = devices[d].first
        tasks[v].finish += devices[d].first
        devices[d].first = tasks[v].finish
        level_end = max(level_end, tasks[v].finish)
        allocate(devices, d, output_bytes(problem, v))
        free_reads(problem, state, v)
    return level_end
