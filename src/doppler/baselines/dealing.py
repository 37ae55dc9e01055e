"""Dealing: as many blocks of each node to every device, each to where most of what it reads is.

That is what data-parallel programs do, and what tensor parallelism is on blocks that are made for
it, found without asking for names. Shape suffixes: B runs, V ops, N nodes, R regions, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import BestOfRuns
from doppler.baselines.hosts import num_ways, using_hosts
from doppler.baselines.room import inputs_of
from doppler.problem import Problem, topological_priority
from doppler.problem.arrays import move_seconds
from doppler.support.compiled import compiled
from doppler.support.options import checked

_TIE = 1e-9  # of the mean transfer's seconds
_ROOM = 0.9  # of memory, for inputs; the rest is for what ops make


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
    """Op after op to the device with the fewest seconds of transfers, until that has its share.

    Its share is of the blocks of each node. Ties go by the number of the block, so that equal
    numbers of equal nodes meet, and blocks of a node that is in fewer parts than there are devices
    to where least is booked. On several hosts ops are confined in each way to use them (hosts.py).
    Where a device has no room for all inputs, it is to hold as large a part of those seen so far
    all along. Nothing is drawn; priorities are topological.

    Source: who has the data computes, with blocks distributed evenly: Hiranandani, Kennedy, Tseng,
    "Compiling Fortran D for MIMD distributed-memory machines", Communications of the ACM 1992; on
    blocks of a transformer it is Megatron's placement, Shoeybi et al., arXiv 1909.08053.
    """

    name: ClassVar[str] = "dealing"

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See BestOfRuns."""
        device_BV = np.stack([_dealt(problem, way % num_ways(problem)) for way in range(num)])
        return device_BV, np.tile(topological_priority(problem), (num, 1))


def has_blocks(problem: Problem) -> bool:
    """Whether all ops are numbered blocks of nodes, and most of them of nodes that are split."""
    ops = problem.graph.ops
    if (ops.node < 0).any():
        return False
    size_V = np.bincount(ops.node)[ops.node]
    return bool((ops.block < size_V).all() and (size_V > 1).mean() > 1 / 2)


def _dealt(problem: Problem, way: int) -> NDArray[np.int64]:
    """Devices [V]."""
    _, node_V = np.unique(problem.graph.ops.node, return_inverse=True)
    size_N, num_devices = np.bincount(node_V), problem.num_devices
    p = using_hosts(problem, way).arrays
    input_ptr, inputs = inputs_of(p)
    dealt = _Dealt(
        device=np.full(problem.num_ops, -1),
        num=np.zeros((len(size_N), num_devices), np.int64),
        booked=np.zeros(num_devices),
        has_region=np.zeros((len(p.region_src), num_devices), bool),
        has_input=np.zeros((len(p.input_bytes), num_devices), bool),
        input_ptr=input_ptr,
        inputs=inputs,
        bytes=np.zeros(num_devices),
    )
    order_V = np.argsort(topological_priority(problem))
    tie_s = _TIE * problem.mean_transfer_seconds.mean()
    _deal(p, dealt, order_V, node_V, size_N, problem.graph.ops.block.copy(), tie_s)
    return dealt.device


@compiled
def _deal(p, s, order_V, node_V, size_N, block_V, tie_s):
    seen, total = 0.0, max(1.0, p.input_bytes.sum())
    for v in order_V:
        for i in range(s.input_ptr[v], s.input_ptr[v + 1]):
            if not s.has_input[s.inputs[i]].any():
                seen += p.input_bytes[s.inputs[i]]
        d = s.device[p.group[v]]
        if d < 0:
            node = node_V[v]
            d = _nearest(p, s, v, s.num[node], size_N[node], block_V[v], seen / total, tie_s)
        s.device[p.group[v]] = d
        s.device[v] = d
        s.num[node_V[v], d] += 1
        s.booked[d] += p.op_seconds[v, d]
        s.bytes[d] += _lacking(p, s, v, d)
        for i in range(s.input_ptr[v], s.input_ptr[v + 1]):
            s.has_input[s.inputs[i], d] = True
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            s.has_region[r, d] = True
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            s.has_region[p.reads[i], d] = True


@compiled
def _nearest(p, s, v, num_D, size, block, part, tie_s):
    """The device that overflows least, has its share of blocks last, is nearest, is its number's.

    part: of all inputs that have been seen; a device is to have no more of what it has room for.
    """
    able, fewest = 0, size
    for d in range(len(num_D)):
        if p.op_seconds[v, d] < np.inf:
            able += 1
            fewest = min(fewest, num_D[d])
    most = max(fewest + 1, (size + able - 1) // able)
    wanted = block * able // size if size >= able else -1
    best, least, filled, time, load, rank = -1, np.inf, True, np.inf, np.inf, -1
    for d in range(len(num_D)):
        if p.op_seconds[v, d] == np.inf:
            continue
        rank += 1
        over, brought = 0.0, _lacking(p, s, v, d)
        if brought > 0.0:
            over = max(0.0, s.bytes[d] + brought - part * _ROOM * p.memory_bytes[d])
        full, busy = num_D[d] >= most, 0.0 if rank == wanted else 1.0
        if over > least or (over == least and full and not filled):
            continue
        if wanted < 0:
            busy = s.booked[d]
        come = 0.0
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            r = p.reads[i]
            if not s.has_region[r, d]:
                come += move_seconds(p, r, s.device[p.region_src[r]], d)
        better = over < least or (filled and not full) or come < time - tie_s
        if better or (come <= time + tie_s and busy < load):
            best, least, filled, time, load = d, over, full, come, busy
    return best


@compiled
def _lacking(p, s, v, d):
    """Bytes of the inputs that op v would bring to device d."""
    total = 0.0
    for i in range(s.input_ptr[v], s.input_ptr[v + 1]):
        if not s.has_input[s.inputs[i], d]:
            total += p.input_bytes[s.inputs[i]]
    return total
