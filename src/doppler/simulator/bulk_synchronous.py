"""The bulk-synchronous engine: level by level, a collective exchange and a barrier before each.

A level is the set of ops at one depth. Before its ops start, every region that they read on a
foreign device, and that has not been moved there yet, is moved: in D - 1 rounds of pairwise
exchange, in round k device s sends one message to device (s + k) mod D; a message takes the link's
latency once and then the transfer time of its regions, and a round ends when its longest message
does. Then every device runs its ops of the level, one at a time, and the level ends when the last
device is done. Vocabulary and shape suffixes as in state.py.

Source: Valiant, "A bridging model for parallel computation", CACM 1990; pairwise exchange as in
Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005;
the comparison is that of DOPPLER (Yao et al., ICLR 2026).
"""

import numpy as np

from doppler.problem.arrays import sized_seconds
from doppler.simulator.copies import allocate, free_reads, list_all_transfers, load_inputs
from doppler.simulator.state import open_ops, output_bytes, transfer_draw
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import jitter


@compiled
def simulate(p, rules, device_V, priority_V, seed, s):
    """Run one placement; arguments and result as in work_conserving.simulate.

    Priorities do not matter: a barrier waits for the whole level in any order.
    """
    tasks, devices, level_ops = s.tasks, s.devices, s.order
    num_ops = len(p.op_seconds)
    open_ops(p, rules, device_V, priority_V, seed, tasks)
    load_inputs(p, device_V, devices)
    for k in range(num_ops, num_ops + list_all_transfers(p, s)):
        tasks[k].pending = 1  # not moved yet
    num_listed = 0
    for v in range(num_ops):
        if tasks[v].pending == 0:
            level_ops[num_listed] = v
            num_listed += 1
    begin, now = 0, 0.0
    while begin < num_listed:
        end = num_listed
        num_moves = _list_moves(p, s, level_ops, begin, end)
        now = _exchange(p, rules, seed, now, num_moves, s)
        now = _compute(p, now, level_ops, begin, end, s)
        for i in range(begin, end):
            v = level_ops[i]
            for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
                for j in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    c = p.consumers[j]
                    tasks[c].pending -= 1
                    if tasks[c].pending == 0:
                        level_ops[num_listed] = c
                        num_listed += 1
        begin = end
    return now if num_listed == num_ops else np.inf


@compiled
def _list_moves(p, s, level_ops, begin, end):
    """Fill ``hops`` with the transfers that the ops level_ops[begin:end] still need."""
    num_ops, num_regions = len(p.op_seconds), len(p.size)
    num_moves = 0
    for i in range(begin, end):
        v = level_ops[i]
        for j in range(p.read_ptr[v], p.read_ptr[v + 1]):
            if s.copies[j] >= num_regions:
                k = num_ops + s.copies[j] - num_regions
                if s.tasks[k].pending > 0:
                    s.tasks[k].pending = 0
                    s.hops[num_moves] = k
                    num_moves += 1
    return num_moves


@compiled
def _exchange(p, rules, seed, now, num_moves, s):
    """Move what is listed; returns when the last round ends."""
    tasks, devices, moves = s.tasks, s.devices, s.hops
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
            seconds = sized_seconds(p, r, src, dst)
            if devices[src].first == now:
                seconds += p.latency_s[src, dst]
            if rules.transfer_noise > 0.0:
                seconds *= jitter(seed, transfer_draw(p, r, dst), rules.transfer_noise)
            tasks[k].start = devices[src].first
            tasks[k].finish = devices[src].first + seconds
            tasks[k].stream = 0
            devices[src].first = tasks[k].finish
            round_end = max(round_end, tasks[k].finish)
            allocate(devices, dst, p.region_bytes[r])
        now = round_end
    for i in range(num_moves):
        r, src = tasks[moves[i]].number, tasks[moves[i]].source
        s.uses[r] -= 1
        if s.uses[r] == 0:
            devices[src].memory -= p.region_bytes[r]
    return now


@compiled
def _compute(p, now, level_ops, begin, end, s):
    """Run a level's ops, each device one after another; returns when the last is done."""
    tasks, devices = s.tasks, s.devices
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
        allocate(devices, d, output_bytes(p, v))
        free_reads(p, s, v)
    return level_end
