"""Problems in which ops are confined to hosts, for machines with several hosts.

Transfers between hosts are several times slower than within one, and list schedulers, which look
one op ahead, spread work over hosts that should stay together. So in some of their runs each op has
a given host. The work is cut into consecutive stages, one per host; with a single stage, all work
is on the first host. In training, the backward pass reads the weights again, and such stages would
put the same inputs on several hosts. In that case each stage gets an equal part of the inputs
instead, and an op that reads an input goes to the host where the input was read first.

Shape suffixes: V ops, D devices, I inputs.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.free_memory_kernels import inputs_of
from doppler.baselines.hosts_kernels import fill_stages_by_inputs
from doppler.problem import Problem, ProblemArrays, topological_priority

# An input has a host if it has at most this many times the median number of readers (by bytes).
_FEW = 4
# Stages are cut by inputs if stages by work would need this many times the input bytes, and if no
# stage has more than this many times the mean work.
_WORTH, _UNEVEN = 1.25, 1.5


def confined(problem: Problem, num_stages: int) -> Problem:
    """Confine ops to the first ``num_stages`` hosts in turn, by work or by inputs.

    Ops that cannot run on their host may run where they could before. Groups stay together.
    """
    rank_V, arrays = topological_priority(problem), problem.arrays
    order_V = np.argsort(rank_V)
    stage_V = _by_work(problem, order_V, num_stages)[arrays.group]
    if num_stages > 1 and len(arrays.input_bytes) > 0:
        kept_V = np.zeros_like(stage_V)
        stage_I = np.full(len(arrays.input_bytes), -1)
        fill_stages_by_inputs(
            arrays,
            order_V,
            rank_V,
            *inputs_of(arrays),
            _own_bytes(arrays),
            num_stages,
            stage_I,
            kept_V,
        )
        kept_V = kept_V[arrays.group]
        spared = _bytes_of(arrays, stage_V, num_stages) / (
            _bytes_of(arrays, kept_V, num_stages) or 1.0
        )
        work_S = np.bincount(kept_V, problem.mean_op_seconds)
        if spared >= _WORTH and work_S.max() <= _UNEVEN * work_S.sum() / num_stages:
            stage_V = kept_V
    host_D = np.array(problem.cluster.hosts or (0,) * problem.num_devices)
    seconds_VD = problem.arrays.op_seconds
    there_VD = np.where(host_D == stage_V[:, None], seconds_VD, np.inf)
    has_none_V = ~np.isfinite(there_VD).any(axis=1)
    there_VD[has_none_V] = seconds_VD[has_none_V]
    return replace(problem, arrays=problem.arrays._replace(op_seconds=there_VD))


def num_ways(problem: Problem) -> int:
    """Return the number of ways to use hosts; 1 if there is one host."""
    num_hosts = problem.cluster.num_hosts
    return num_hosts + 1 if num_hosts > 1 else 1


def using_hosts(problem: Problem, way: int) -> Problem:
    """Return the problem for a way to use hosts: freely, one, all in turn, all but one, ..."""
    if way == 0:
        return problem
    return confined(problem, 1 if way == 1 else problem.cluster.num_hosts + 2 - way)


def _by_work(problem: Problem, order_V: NDArray[np.int64], num_stages: int) -> NDArray[np.int64]:
    """The stage [V] of each op, with equal work in each stage."""
    work_V = problem.mean_op_seconds[order_V]
    before_V = work_V.cumsum() - work_V / 2
    stage_V = np.empty(problem.num_ops, np.int64)
    stage_V[order_V] = num_stages * before_V / (work_V.sum() or 1.0)
    return np.minimum(stage_V, num_stages - 1)


def _own_bytes(arrays: ProblemArrays) -> NDArray[np.float64]:
    """Bytes [I] of inputs; 0 for inputs with far more readers than usual.

    Inputs that all layers read, such as tables of angles, belong to no host.
    """
    num_readers_I = np.diff(arrays.input_ptr)
    by_readers = np.argsort(num_readers_I, kind="stable")
    bytes_so_far = arrays.input_bytes[by_readers].cumsum()
    median = by_readers[np.searchsorted(bytes_so_far, bytes_so_far[-1] / 2)]
    return np.where(num_readers_I <= _FEW * num_readers_I[median], arrays.input_bytes, 0.0)


def _bytes_of(arrays: ProblemArrays, stage_V: NDArray[np.int64], num_stages: int) -> float:
    """Bytes of the inputs on all hosts together."""
    input_I = np.repeat(np.arange(len(arrays.input_bytes)), np.diff(arrays.input_ptr))
    there = np.unique(input_I * num_stages + stage_V[arrays.input_consumers])
    return float(arrays.input_bytes[there // num_stages].sum())
