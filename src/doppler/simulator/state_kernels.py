"""Compiled: shared by the simulated engines, such as jitter, streams and network interfaces.

Vocabulary and dimensions as in state.py. Indices: v op, r region, d device, src and dst devices, i
and j tasks; a task v < V is an op.
"""

from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import jitter


@compiled
def transfer_draw(problem, r, dst):
    """Return the number of the random draw for a transfer, among all possible transfers.

    Args:
        problem: ProblemArrays.
        r: region.
        dst: device.
    """
    num_ops, num_devices = problem.op_seconds.shape
    return num_ops + r * num_devices + dst


@compiled
def transfer_seconds(problem, rules, seed, r, src, dst):
    """Seconds of a transfer of region r from device src to dst, jitter included.

    Args:
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        seed: of jitter.
        r: region.
        src: device.
        dst: device.
    """
    seconds = move_seconds(problem, r, src, dst)
    if rules.transfer_noise > 0.0:
        seconds *= jitter(seed, transfer_draw(problem, r, dst), rules.transfer_noise)
    return seconds


@compiled
def by_key(tasks, i, j):
    """Whether task i goes before task j in a queue by key."""
    return tasks[i].key < tasks[j].key or (
        tasks[i].key == tasks[j].key and tasks[i].number < tasks[j].number
    )


@compiled
def open_ops(problem, rules, device_V, priority_V, seed, tasks):
    """Put every op on its device, waiting for all regions that it reads.

    Until it starts, an op's finish holds its duration, jitter included: the engines reach ops in
    any order, and on large graphs one memory access less per op saves a quarter of the time.
    """
    for v in range(len(device_V)):
        tasks[v].number = v
        tasks[v].key = priority_V[v]
        tasks[v].resource = device_V[v]
        tasks[v].finish = problem.op_seconds[v, device_V[v]]
        if rules.op_noise > 0.0:
            tasks[v].finish *= jitter(seed, v, rules.op_noise)
        tasks[v].pending = problem.read_ptr[v + 1] - problem.read_ptr[v]


@compiled
def take_stream(devices, d):
    """Take the first idle stream of device d."""
    stream = _first_free(devices[d].busy)
    devices[d].busy |= 1 << stream
    return stream


@compiled
def can_cross(problem, hosts, src, dst):
    """Whether two different hosts have interfaces free for a transfer.

    Args:
        problem: ProblemArrays.
        hosts: State.hosts.
        src: device.
        dst: device.
    """
    here, there = problem.host[src], problem.host[dst]
    full_here, full_there = (1 << problem.nics[here]) - 1, (1 << problem.nics[there]) - 1
    return hosts[here].sending != full_here and hosts[there].receiving != full_there


@compiled
def take_interfaces(problem, hosts, src, dst):
    """Occupy the first free interfaces of the two hosts.

    Args:
        problem: ProblemArrays.
        hosts: State.hosts.
        src: device.
        dst: device.

    Returns:
        The outgoing and the incoming one.
    """
    here, there = problem.host[src], problem.host[dst]
    out, into = _first_free(hosts[here].sending), _first_free(hosts[there].receiving)
    hosts[here].sending |= 1 << out
    hosts[there].receiving |= 1 << into
    return out, into


@compiled
def free_interfaces(problem, hosts, src, dst, out, into):
    """Free the two interfaces of a transfer that has ended.

    Args:
        problem: ProblemArrays.
        hosts: State.hosts.
        src: device.
        dst: device.
        out: outgoing interface.
        into: incoming interface.
    """
    hosts[problem.host[src]].sending &= ~(1 << out)
    hosts[problem.host[dst]].receiving &= ~(1 << into)


@compiled
def _first_free(bits):
    first = 0
    while (bits >> first) & 1:
        first += 1
    return first


@compiled
def output_bytes(problem, v):
    """Bytes of the output of op v: its regions, or what no op reads.

    Args:
        problem: ProblemArrays.
        v: op.
    """
    total = problem.sink_bytes[v]
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        total += problem.region_bytes[r]
    return total
