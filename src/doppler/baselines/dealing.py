"""Dealing: every device gets equally many blocks of each node, each near the data that it reads.

Data-parallel programs do this, and so does tensor parallelism on blocks that are made for it. Here
it is found without knowing the names of nodes.

Shape suffixes: B runs, V ops, N nodes, R regions, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import BestOfRuns
from doppler.baselines.dealing_kernels import deal_ops
from doppler.baselines.free_memory_kernels import inputs_of
from doppler.baselines.hosts import num_ways, using_hosts
from doppler.problem import Problem, topological_priority
from doppler.support.options import checked

_TIE = 1e-9  # of the mean transfer's seconds


class _Dealt(NamedTuple):
    """Buffers of one run."""

    device: NDArray[np.int64]  # [V], -1 before it is known
    num: NDArray[np.int64]  # [N, D] blocks of a node that a device has
    booked: NDArray[np.float64]  # [D] seconds of its ops
    has_region: NDArray[np.bool_]  # [R, D]
    has_input: NDArray[np.bool_]  # [I, D]
    input_ptr: NDArray[np.int64]  # [V + 1] op v needs inputs[input_ptr[v]:input_ptr[v + 1]]
    inputs: NDArray[np.int64]
    bytes: NDArray[np.float64]  # [D] of inputs


@checked
@dataclass(frozen=True, kw_only=True)
class Dealing(BestOfRuns):
    """Put each op on the device with the fewest seconds of transfers that has not had its share.

    A device's share is an equal part of the blocks of each node. Ties are broken by the number of
    the block, so that blocks with equal numbers meet. If a node has fewer blocks than there are
    devices, ties go to the device with the least work. On several hosts, ops are confined in each
    way to use them (hosts.py). If a device has no room for all inputs, its memory fills with inputs
    only in proportion to the share of all inputs seen so far. Nothing is random; priorities are
    topological.

    Source: who has the data computes, with blocks distributed evenly: Hiranandani, Kennedy, Tseng,
    "Compiling Fortran D for MIMD distributed-memory machines", Communications of the ACM 1992. On
    blocks of a transformer it is Megatron's placement, Shoeybi et al., arXiv 1909.08053.
    """

    name: ClassVar[str] = "dealing"

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        device_BV = np.stack([_dealt(problem, way % num_ways(problem)) for way in range(num)])
        return device_BV, np.tile(topological_priority(problem), (num, 1))


def has_blocks(problem: Problem) -> bool:
    """Whether all ops are numbered blocks of nodes, most of them of nodes that are split."""
    ops = problem.graph.ops
    if (ops.node < 0).any():
        return False
    size_V = np.bincount(ops.node)[ops.node]
    return bool((ops.block < size_V).all() and (size_V > 1).mean() > 1 / 2)


def _dealt(problem: Problem, way: int) -> NDArray[np.int64]:
    """Deal the ops; returns devices [V]."""
    _, node_V = np.unique(problem.graph.ops.node, return_inverse=True)
    size_N, num_devices = np.bincount(node_V), problem.num_devices
    arrays = using_hosts(problem, way).arrays
    input_ptr, inputs = inputs_of(arrays)
    dealt = _Dealt(
        device=np.full(problem.num_ops, -1),
        num=np.zeros((len(size_N), num_devices), np.int64),
        booked=np.zeros(num_devices),
        has_region=np.zeros((len(arrays.region_src), num_devices), bool),
        has_input=np.zeros((len(arrays.input_bytes), num_devices), bool),
        input_ptr=input_ptr,
        inputs=inputs,
        bytes=np.zeros(num_devices),
    )
    order_V = np.argsort(topological_priority(problem))
    transfers_s = problem.mean_transfer_seconds
    tie_s = _TIE * transfers_s.mean() if len(transfers_s) else 0.0
    deal_ops(arrays, dealt, order_V, node_V, size_N, problem.graph.ops.block.copy(), tie_s)
    return dealt.device
