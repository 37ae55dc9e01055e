"""The enumerative optimizer: all blocks of a node go at once to where the fewest bytes move.

Shape suffixes: V ops, D devices, P pieces, K blocks of a group, S selections.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import execute_best
from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_level_priority
from doppler.graph import DataflowGraph
from doppler.graph.levels import find_cycle, ranked_order
from doppler.problem import Problem
from doppler.problem.arrays import link_seconds
from doppler.support.errors import InputError
from doppler.system import Session

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Largest number of selections tried for one group of blocks: all permutations of 8 devices.
_MOST_SELECTIONS = math.factorial(8)
# Costs that differ only by rounding errors of sums are tied.
_TIE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Enumerative:
    """Node by node, the blocks of a node on distinct devices, so that the fewest bytes move.

    For each node of the program, producers first, every ordered selection of as many distinct
    devices as it has blocks is tried, and the first of the cheapest is kept. A block costs the
    bytes of each piece that it reads times the distance from the device that holds it, unless an op
    that is already on its device reads the piece too; input block b counts as lying on device
    b mod D. A formation block reads one piece, to which each device that holds contributions sends
    once; it goes, together with the node before it, to where that costs least, and its cost is
    part of the node's. Compute is never costed: distinct devices are all the balance there is.
    The distance is the fastest link's bandwidth over the link's.

    Beyond the original, which knows only equal devices and nodes of at most D blocks:

    - Groups: more blocks are assigned in order, D at a time, each group by its own search, so that
      the devices get equally many; a formation block counts with the group that completes it. For
      more than 8 devices a group is as many blocks as 8! selections can be tried for, and the next
      one takes the devices that are left.
    - No block goes where it may not run. Where a whole group finds no devices, fewer blocks form
      one; so it is with blocks that the problem itself has in one group, which follow the first.
    - If the result does not fit in memory, all is assigned once more, each block to where it and
      all that was brought there before have room, or else where least is lacking.
    - A piece is a region of the graph, what our systems move; the original cuts the regions of all
      consumers into common pieces, so that two that overlap share what they have in common.

    Priorities are those of the b_level.

    Source: the enumerative assignment of DOPPLER's EnumOpt (Yao et al., ICLR 2026), as the engine
    of its workloads has it (EinDecomp, arXiv 2410.02682).
    """

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """Assign all nodes and execute the result (see `contract.Baseline.place`).

        Raises:
            InputError: the graph does not say which node its ops are blocks of.
        """
        problem = session.problem
        unlimited = np.full(problem.num_devices, np.inf)
        result = _attempt(session, unlimited, rng)
        if np.isfinite(result.makespan_s):
            return result
        return replace(_attempt(session, problem.arrays.memory_bytes, rng), evaluations=2)


def _attempt(session: Session, memory_bytes: FloatArray, rng: np.random.Generator) -> SearchResult:
    """Assign all nodes and execute the result once."""
    problem = session.problem
    assignment = _Assignment(problem, memory_bytes)
    for blocks in nodes_in_order(problem.graph):
        assignment.assign_node(blocks)
    return execute_best(session, assignment.device_V[None], b_level_priority(problem)[None], rng)


def nodes_in_order(graph: DataflowGraph) -> list[list[int]]:
    """Return the ops of each node by block; nodes are in topological order, ties by number.

    Raises:
        InputError: an op without a node, or nodes that depend on each other in a circle.
    """
    ops, edges = graph.ops, graph.edges
    homeless = np.flatnonzero(ops.node < 0)
    if len(homeless):
        v = homeless[0]
        raise InputError(
            f"graph {graph.name!r}: op {v} ({ops.names[v]!r}) names no node, and enumerative "
            "assigns node by node (the published text format has none, JSON can have them)"
        )
    number_N, node_V = np.unique(ops.node, return_inverse=True)
    cycle = find_cycle(len(number_N), node_V[edges.src], node_V[edges.dst])
    if cycle:
        shown = " -> ".join(str(number_N[i]) for i in [*cycle, cycle[0]])
        raise InputError(
            f"graph {graph.name!r}: nodes {shown} need each other: enumerative assigns all blocks "
            "of a node together"
        )
    order_N = ranked_order(
        len(number_N), node_V[edges.src], node_V[edges.dst], np.arange(len(number_N))
    )
    blocks: list[list[int]] = [[] for _ in number_N]
    for v in np.lexsort((ops.block, node_V)).tolist():
        blocks[node_V[v]].append(v)
    return [blocks[i] for i in order_N]


def distances(problem: Problem) -> FloatArray:
    """[D, D] bandwidth of the fastest link over that of each, 0 from a device to itself."""
    p = problem.arrays
    distance_DD = link_seconds(p) if len(p.kind_seconds) else p.seconds_per_size.copy()
    np.fill_diagonal(distance_DD, 0.0)
    if not distance_DD.any():  # all links of infinite bandwidth are equal
        distance_DD = 1.0 - np.eye(len(distance_DD))
    return distance_DD / distance_DD.min(where=distance_DD > 0, initial=np.inf)


@lru_cache(maxsize=32)
def _selections(num: int, size: int) -> IntArray:
    """Ordered selections [S, size] of distinct ones of ``num``, in lexicographic order."""
    return np.array(list(itertools.permutations(range(num), size)), dtype=np.int64)


def _first_least(costs: FloatArray) -> int:
    """Index of the first of the smallest costs."""
    return int((costs <= costs.min() * (1.0 + _TIE)).argmax())


def _group_size(num_free: int, num_left: int) -> int:
    """How many blocks are assigned at once, so that all selections can be tried."""
    size = min(num_free, num_left)
    while size > 1 and math.perm(num_free, size) > _MOST_SELECTIONS:
        size -= 1
    return size


class _Assignment:
    """The devices of the ops so far (-1: none yet), and the cost of adding ops.

    Pieces are the regions, followed by the inputs.

    Args:
        memory_bytes: [D] memory of each device.
    """

    def __init__(self, problem: Problem, memory_bytes: FloatArray) -> None:
        graph, p = problem.graph, problem.arrays
        num_regions, num_devices = len(p.region_bytes), problem.num_devices
        self.graph, self.arrays = graph, p
        self.able_VD = np.isfinite(p.op_seconds)
        self.distance_DD = distances(problem)
        self.device_V = np.full(problem.num_ops, -1)
        reads = [
            p.reads[p.read_ptr[v] : p.read_ptr[v + 1]].tolist() for v in range(problem.num_ops)
        ]
        for i, consumers in enumerate(graph.inputs.consumers):
            for v in set(consumers):
                reads[v].append(num_regions + i)
        self.pieces = [np.array(pieces, dtype=np.int64) for pieces in reads]
        self.bytes_P = np.append(p.region_bytes, p.input_bytes)
        # Where a piece comes from: its producer's device, or the device assumed to hold an input.
        self.holder_P = np.append(np.full(num_regions, -1), graph.inputs.block % num_devices)
        # Whether an op that is assigned to the device reads the piece, and whether it is there.
        self.is_read_PD = np.zeros((len(self.bytes_P), num_devices), dtype=bool)
        self.is_there_PD = np.zeros_like(self.is_read_PD)
        self.room_D = memory_bytes.copy()
        self.formations = self._formations()

    def _formations(self) -> dict[int, dict[int, IntArray]]:
        """For each node the formation blocks behind it, and the ops that contribute to each."""
        ops, num_regions = self.graph.ops, len(self.arrays.region_bytes)
        formations: dict[int, dict[int, IntArray]] = defaultdict(dict)
        for v in np.lexsort((ops.block, ops.node)).tolist():
            pieces = self.pieces[v]
            if ops.kinds[v] == "formation" and len(pieces) and pieces.max() < num_regions:
                contributors = np.unique(self.arrays.region_src[pieces])
                nodes = np.unique(ops.node[contributors])
                if len(nodes) == 1:
                    formations[int(nodes[0])][v] = contributors
        return formations

    def assign_node(self, blocks: Sequence[int]) -> None:
        """Assign the blocks of a node that have no device yet, and the formation behind it."""
        formations = self.formations[int(self.graph.ops.node[blocks[0]])]
        left = [v for v in blocks if self.device_V[v] < 0]
        everywhere = list(range(len(self.distance_DD)))
        free = everywhere
        while left:
            for size in range(_group_size(len(free), len(left)), 0, -1):
                group = left[:size]
                completed = {f: c for f, c in formations.items() if self._completes(group, c)}
                devices = self._cheapest(group, free, completed)
                if devices is not None:
                    for v, d in zip(group, devices, strict=True):
                        self._assign(v, d)
                    for f, contributors in completed.items():
                        (cost_D,) = self._formation_cost(f, self._senders(contributors))
                        self._assign(f, _first_least(cost_D))
                    left, free = left[size:], [d for d in free if d not in devices]
                    break
            else:
                free = everywhere

    def _completes(self, group: Sequence[int], contributors: IntArray) -> bool:
        """Whether the last contributors are in the group."""
        inside = np.isin(contributors, group)
        return bool(inside.any() and (inside | (self.device_V[contributors] >= 0)).all())

    def _cheapest(
        self, group: Sequence[int], free: Sequence[int], formations: dict[int, IntArray]
    ) -> list[int] | None:
        """The first of the cheapest selections of free devices; None if none is possible."""
        undecided = [self.arrays.group[v] for v in group if self.able_VD[v].sum() > 1]
        if len(set(undecided)) < len(undecided):
            return None  # they all go to one device
        cost_KD = np.stack([np.where(self._allowed(v), self._cost(v), np.inf) for v in group])
        selection_SK = np.array(free)[_selections(len(free), len(group))]
        total_S = cost_KD[np.arange(len(group)), selection_SK].sum(axis=1)
        for f, contributors in formations.items():
            sends_SD = np.repeat(self._senders(contributors), len(selection_SK), axis=0)
            for k, v in enumerate(group):
                if v in contributors:
                    sends_SD[np.arange(len(sends_SD)), selection_SK[:, k]] = True
            total_S += self._formation_cost(f, sends_SD).min(axis=1)
        best = _first_least(total_S)
        return None if np.isinf(total_S[best]) else selection_SK[best].tolist()

    def _allowed(self, v: int) -> NDArray[np.bool_]:
        """Devices [D] that can run the op and have room for it; if none has, where least lacks."""
        lacking_D = np.maximum(0.0, self._brought(v) - self.room_D)
        lacking_D[~self.able_VD[v]] = np.inf
        return lacking_D <= lacking_D.min()

    def _brought(self, v: int) -> FloatArray:
        """Bytes [D] that op v adds to each device: its output, and what it reads and lacks."""
        p, pieces = self.arrays, self.pieces[v]
        output = p.sink_bytes[v] + p.region_bytes[p.region_ptr[v] : p.region_ptr[v + 1]].sum()
        return output + np.where(self.is_there_PD[pieces], 0.0, self.bytes_P[pieces, None]).sum(0)

    def _cost(self, v: int) -> FloatArray:
        """Bytes times distance [D] that move to each device if op v goes there."""
        pieces = self.pieces[v]
        moved_PD = self.bytes_P[pieces, None] * self.distance_DD[self.holder_P[pieces]]
        return np.where(self.is_read_PD[pieces], 0.0, moved_PD).sum(axis=0)

    def _senders(self, contributors: IntArray) -> NDArray[np.bool_]:
        """Whether each device holds contributions so far, [1, D]."""
        devices = self.device_V[contributors]
        sends_1D = np.zeros((1, len(self.distance_DD)), dtype=bool)
        sends_1D[0, devices[devices >= 0]] = True
        return sends_1D

    def _formation_cost(self, f: int, sends_SD: NDArray[np.bool_]) -> FloatArray:
        """Bytes times distance [S, D] that move to each device if formation block f goes there."""
        # No matrix product: for such narrow matrices, BLAS threads cost more than they save.
        distance_SD = np.einsum("sf,ft->st", sends_SD, self.distance_DD)
        cost_SD = self.bytes_P[self.pieces[f]].max() * distance_SD
        return np.where(self._allowed(f), cost_SD, np.inf)

    def _assign(self, v: int, d: int) -> None:
        own = slice(self.arrays.region_ptr[v], self.arrays.region_ptr[v + 1])
        if len(self.arrays.members):
            together_V = self.arrays.group == self.arrays.group[v]
            self.able_VD[together_V] = np.arange(len(self.room_D)) == d
        self.room_D[d] -= self._brought(v)[d]
        self.device_V[v] = self.holder_P[own] = d
        self.is_there_PD[own, d] = self.is_there_PD[self.pieces[v], d] = True
        self.is_read_PD[self.pieces[v], d] = True
