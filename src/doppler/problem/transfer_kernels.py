"""Compiled: the seconds of one transfer, and whether it crosses hosts.

Dimensions: R regions, D devices. Indices: r region, src and dst devices.
"""

from doppler.support.compiled import compiled


@compiled
def move_seconds(problem, r, src, dst):
    """Seconds of a transfer of region r from device src to dst, without jitter.

    Args:
        problem: ProblemArrays.
        r: region.
        src: device.
        dst: device.
    """
    return problem.latency_s[src, dst] + sized_seconds(problem, r, src, dst)


@compiled
def sized_seconds(problem, r, src, dst):
    """Seconds of a transfer without the latency of its link.

    Args:
        problem: ProblemArrays.
        r: region.
        src: device.
        dst: device.
    """
    if len(problem.kind_seconds) > 0:
        return problem.kind_seconds[r, problem.kind[src], problem.kind[dst]]
    return problem.size[r] * problem.seconds_per_size[src, dst]


@compiled
def crosses_hosts(problem, src, dst):
    """Whether a transfer between two devices occupies network interfaces.

    Args:
        problem: ProblemArrays.
        src: device.
        dst: device.
    """
    return len(problem.host) > 0 and problem.host[src] != problem.host[dst]
