"""Machines with several hosts: problems in which every op has its host already.

Between hosts data moves several times slower than within one, and list schedulers, which look one
op ahead, spread work over hosts that is better kept together. So some of their runs are told the
host of each op: one stage of the work after the other, each on a host, and one stage alone is all
work on the first host. Shape suffixes: V ops, D devices.
"""

from dataclasses import replace

import numpy as np

from doppler.problem import Problem, topological_priority


def confined(problem: Problem, num_stages: int) -> Problem:
    """The problem with op after op, as much work each, on the first ``num_stages`` hosts in turn.

    What may not run on its host may run where it could before, and groups stay together.
    """
    order_V = np.argsort(topological_priority(problem))
    work_V = problem.mean_op_seconds[order_V]
    before_V = work_V.cumsum() - work_V / 2
    stage_V = np.empty(problem.num_ops, np.int64)
    stage_V[order_V] = num_stages * before_V / (work_V.sum() or 1.0)
    stage_V = np.minimum(stage_V, num_stages - 1)[problem.arrays.group]
    host_D = np.array(problem.cluster.hosts or (0,) * problem.num_devices)
    seconds_VD = problem.arrays.op_seconds
    there_VD = np.where(host_D == stage_V[:, None], seconds_VD, np.inf)
    has_none_V = ~np.isfinite(there_VD).any(axis=1)
    there_VD[has_none_V] = seconds_VD[has_none_V]
    return replace(problem, arrays=problem.arrays._replace(op_seconds=there_VD))


def num_ways(problem: Problem) -> int:
    """Of using hosts; one where there is but one host."""
    num_hosts = problem.cluster.num_hosts
    return num_hosts + 1 if num_hosts > 1 else 1


def using_hosts(problem: Problem, way: int) -> Problem:
    """The problem for one of these ways: freely, on one host, in turn on all, on all but one..."""
    if way == 0:
        return problem
    return confined(problem, 1 if way == 1 else problem.cluster.num_hosts + 2 - way)
