"""A decomposition that minimises time: of the computation and of the transfers on a given cluster.

The dynamic program of search.py minimises seconds instead of elements: the seconds in which this
cluster's devices compute a node's blocks, and those in which its links transfer what readers must
fetch. Inputs are free, because they are wherever they are read. This model sees one node at a time,
as if all others waited. So several granularities are proposed, and a short search on the actual
system judges each proposal.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from doppler.cluster import Cluster
from doppler.einsum.decomposition.fewest_elements import FewestElements
from doppler.einsum.decomposition.repeats import Shortened, shorten
from doppler.einsum.decomposition.search import CutTensor, FloatArray, IntArray, Search
from doppler.einsum.lowering import lower
from doppler.einsum.program import Einsum, Input, Node, Program, Splits
from doppler.graph import DataflowGraph
from doppler.graph.scalar import DTYPES
from doppler.problem import Problem, build
from doppler.problem.pricing import op_cost_s
from doppler.support.errors import InputError
from doppler.support.options import Devices

# Makespans that differ by a smaller share count as equal; then fewer ops win, because they are
# easier to place.
_SAME = 0.01
# Expected time to judge the next proposal, relative to the one before.
_NEXT = 2.5
# Number of proposals that are always judged: no splits, and one with splits.
_LEAST_TRIED = 2
# Largest number of ways to split one node; blocks per device that are tried if no coarser ones fit.
_MOST_WAYS, _FINE_GRAINS = 1024, (2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best splits that were found.

    Attributes:
        splits: by node name.
        tried: number of proposals that were judged; fewer than ``num`` if time was short.
        num: number of all proposals.
    """

    splits: Splits
    tried: int
    num: int


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The best of the published splits and of time-aware splits of several granularities.

    Of equal layers (repeats.py) only a few are split and judged, with the inputs of all of them.

    Attributes:
        cluster: that the graph will run on.
        judge: returns the seconds of a good placement of a problem, inf if none fits in memory.
        grains: numbers of blocks of a contraction per device that are tried.
        whole: whether no splits at all are tried first.
    """

    cluster: Cluster
    judge: Callable[[Problem], float]
    grains: Sequence[Devices]
    whole: bool = False

    def splits(self, program: Program, parts: int) -> Splits:
        """Return the best splits (see `workload.Decomposition`).

        Args:
            program: to split.
            parts: number of ops that the published splits aim at.
        """
        return self.choose(program, parts).splits

    def choose(self, program: Program, parts: int, *, until_s: float = math.inf) -> Choice:
        """Choose splits, and stop when time is over.

        Args:
            program: to split.
            parts: number of ops that the published splits aim at.
            until_s: end of the time, as time.perf_counter() counts.

        Raises:
            InputError: no proposal that was judged fits in memory.
        """
        short = shorten(program)
        refused: list[InputError] = []
        num_tried = 0
        ways = [partial(_placed_alike, short, self.cluster)]
        if short.missing_inputs:
            ways.append(partial(build, cluster=self._room_left(short)))
        for proposals in (self._proposals(short.program, parts), self._fine(short.program)):
            for build_short in ways:
                judged = self._judged(short.program, build_short, proposals, until_s, refused)
                num_tried += len(judged)
                if any(seconds < math.inf for seconds, _, _ in judged):
                    splits = short.splits_of_all(_best(judged))
                    return Choice(splits=splits, tried=len(judged), num=len(proposals))
        told = f"decomposition=auto: no splits of {program.name!r} that were tried"
        if len(refused) == num_tried:
            raise InputError(f"{told} run on {self.cluster.name!r}: {refused[0]}")
        raise InputError(f"{told} fit in the memory of {self.cluster.name!r}")

    def _room_left(self, short: Shortened) -> Cluster:
        """Return the cluster without the memory of the missing layers' inputs, spread evenly."""
        missing = short.missing_inputs
        all_bytes = sum(math.prod(node.shape) * DTYPES[node.dtype] for node in missing)
        each_bytes = all_bytes / self.cluster.num_devices
        devices = (
            replace(device, memory_bytes=max(0.0, device.memory_bytes - each_bytes))
            for device in self.cluster.devices
        )
        return replace(self.cluster, devices=tuple(devices))

    def _judged(
        self,
        program: Program,
        build_short: Callable[[DataflowGraph], Problem],
        proposals: list[Callable[[], Splits]],
        until_s: float,
        refused: list[InputError],
    ) -> list[tuple[float, int, Splits]]:
        """Return seconds, ops and splits of the first proposals, as many as there is time for.

        Why a proposal cannot be placed is added to ``refused``.
        """
        judged = []
        for propose in proposals:
            begin_s = time.perf_counter()
            try:
                splits = propose()
                graph = lower(program, splits)
                seconds = self.judge(build_short(graph))
                judged.append((seconds, graph.num_ops, splits))
            except InputError as error:  # too few elements for so many parts, too little memory
                refused.append(error)
                judged.append((math.inf, 0, {}))
            now_s = time.perf_counter()
            # The next proposal is finer and takes longer.
            fits = any(seconds < math.inf for seconds, _, _ in judged)
            if fits and len(judged) >= _LEAST_TRIED and now_s + _NEXT * (now_s - begin_s) > until_s:
                break
        return judged

    def _proposals(self, program: Program, parts: int) -> list[Callable[[], Splits]]:
        proposals: list[Callable[[], Splits]] = [dict] if self.whole else []
        ways = [(self.cluster, parts)]
        # Splits for one host, too: then only whole ops cross between hosts, or one is enough.
        if self.cluster.num_hosts > 1:
            host = self.cluster.first_host
            ways.insert(0, (host, parts * host.num_devices // self.cluster.num_devices))
        for cluster, num in ways:
            totals = [grain * cluster.num_devices for grain in self.grains]
            objectives = [NodeSeconds(program, cluster, total) for total in totals]
            proposals += [partial(_searched, program, objective) for objective in objectives]
            proposals.append(partial(FewestElements().splits, program, num))
        return proposals

    def _fine(self, program: Program) -> list[Callable[[], Splits]]:
        """Return finer proposals, for problems that fit in memory only in small pieces."""
        totals = [grain * self.cluster.num_devices for grain in _FINE_GRAINS]
        objectives = [NodeSeconds(program, self.cluster, total, all_fine=True) for total in totals]
        return [partial(_searched, program, objective) for objective in objectives]


def _placed_alike(short: Shortened, cluster: Cluster, graph: DataflowGraph) -> Problem:
    """Return the problem of a few layers, with the inputs of all layers that they represent.

    A placement that fits here also fits if all layers are placed like these. Layers could also be
    placed differently, so this is stricter than necessary.
    """
    problem = build(graph, cluster)
    stood_for = Counter(short.stand_ins.values())
    times = [1 + stood_for[graph.tensors[node].name] for node in graph.inputs.node]
    in_all = problem.arrays.input_bytes * np.array(times, np.float64)
    return replace(problem, arrays=problem.arrays._replace(input_bytes=in_all))


def _searched(program: Program, objective: "NodeSeconds") -> Splits:
    return Search(program, objective).run()


def _best(judged: list[tuple[float, int, Splits]]) -> Splits:
    """Return the splits with the fewest ops among those that are about as fast as the fastest."""
    enough_s = (1 + _SAME) * min(seconds for seconds, _, _ in judged)
    return min((one for one in judged if one[0] <= enough_s), key=lambda one: one[1])[2]


class NodeSeconds:
    """An objective: seconds of computation and transfers, node by node.

    Args:
        program: to split.
        cluster: that it runs on.
        total: number of blocks of a contraction. Other nodes have at most as many or, with
            ``all_fine``, exactly as many.
        all_fine: see ``total``.
    """

    def __init__(
        self, program: Program, cluster: Cluster, total: int, *, all_fine: bool = False
    ) -> None:
        self.all_fine = all_fine
        self.program = program
        self.cluster = cluster
        self.total = total
        num = cluster.num_devices
        between = ~np.eye(num, dtype=bool)
        # A device is assumed to send over one link at a time: others may be busy with other nodes.
        self.s_per_byte = (1.0 / cluster.path_bytes_per_s[between]).mean() / num if num > 1 else 0.0

    def candidates(self, node: Node) -> list[tuple[int, ...]]:
        fitting = [
            parts
            for parts in _ways(len(node.space), self.total)
            if all(node.split_fault(dim, number) is None for dim, number in enumerate(parts))
        ]
        if self.all_fine or (isinstance(node, Einsum) and node.is_contraction):
            most = max(map(math.prod, fitting))  # small nodes have fewer elements than parts
            return [one for one in fitting if math.prod(one) == most]
        return fitting

    def node_cost(self, node: Node, parts: tuple[int, ...]) -> float:
        if isinstance(node, Input):
            return 0.0
        num = math.prod(parts)
        box = tuple(
            (0, min(extent, -(-extent // number // node.grain(dim)) * node.grain(dim)))
            for dim, (extent, number) in enumerate(zip(node.space, parts, strict=True))
        )
        block_bytes = math.prod(stop for _, stop in box[: len(node.shape)]) * DTYPES[node.dtype]
        read_bytes = 0
        moved_bytes = 0.0
        for operand in node.kernel_operands(box):
            for piece in operand.pieces:
                piece_bytes = math.prod(b - a for a, b in piece.box) * DTYPES[operand.dtype]
                read_bytes += piece_bytes
                producer = self.program.nodes[node.operands[piece.operand]]
                if not isinstance(producer, Input):
                    # On average so many blocks read each element of the tensor.
                    size = math.prod(producer.shape) * DTYPES[producer.dtype]
                    readers = max(1.0, num * piece_bytes / size)
                    moved_bytes += size * (min(readers, self.cluster.num_devices) - 1)
        seconds = self.spread_s(node.flops(box), read_bytes + block_bytes, node.dtype, num)
        if isinstance(node, Einsum) and node.aggregation is not None:
            num_out = math.prod(parts[: len(node.shape)])
            partials = num // num_out
            elements = math.prod(stop for _, stop in box[: len(node.shape)])
            if partials > 1 or self.program.copies_sums:
                seconds += self.spread_s(
                    (partials - 1) * elements, (partials + 1) * block_bytes, node.dtype, num_out
                )
            copies = min(partials, self.cluster.num_devices) - 1
            moved_bytes += copies * num_out * block_bytes
        return seconds + moved_bytes * self.s_per_byte

    def edge_cost(self, tensor: CutTensor, own: IntArray, uses: Sequence[IntArray]) -> FloatArray:
        """Return the seconds of fetching, if each reader runs where most of what it reads was made.

        Args:
            tensor: that is cut.
            own: [..., K] cut points of the tensor.
            uses: [..., K] cut points of each use; all broadcast.
        """
        node = tensor.node
        if isinstance(node, Input):
            return np.zeros(())
        total = np.zeros(())
        for use in uses:
            local = np.ones(())
            for k in range(tensor.rank):
                largest = tensor.largest_block(k)
                read = largest[use[..., k]]
                local = local * np.minimum(largest[own[..., k]], read) / read
            total = total + (1 - local)
        return total * math.prod(node.shape) * DTYPES[node.dtype] * self.s_per_byte

    def spread_s(self, flops: float, moved_bytes: float, dtype: str, num: int) -> float:
        """Return the seconds until equal blocks are done, each on the device that ends it first.

        Args:
            flops: of one block.
            moved_bytes: that one block reads and writes.
            dtype: of the block.
            num: number of blocks.
        """
        each = [
            float(
                op_cost_s(
                    flops=np.array([float(flops)]),
                    moved_bytes=np.array([float(moved_bytes)]),
                    dtypes=(dtype,),
                    device=device,
                )[0]
            )
            for device in self.cluster.devices
        ]
        if len(set(each)) == 1:
            return -(-num // len(each)) * each[0]
        ends = [(seconds, seconds) for seconds in each]
        heapq.heapify(ends)
        end = 0.0
        for _ in range(num):
            end, seconds = ends[0]
            heapq.heapreplace(ends, (end + seconds, seconds))
        return end


@cache
def _ways(rank: int, total: int) -> tuple[tuple[int, ...], ...]:
    """Return all factorings; if they are too many, those that split the fewest dimensions."""
    every = tuple(_factorings(rank, total))
    if len(every) <= _MOST_WAYS:
        return every
    few = sorted(every, key=lambda parts: sum(number > 1 for number in parts))[:_MOST_WAYS]
    return tuple(sorted(few, key=lambda parts: -math.prod(parts)))


def _factorings(rank: int, total: int) -> Iterator[tuple[int, ...]]:
    """Return all parts of ``rank`` dimensions whose product divides ``total``, finest first."""
    divisors = [one for one in range(total, 0, -1) if total % one == 0]

    def extend(rank: int, total: int) -> Iterator[tuple[int, ...]]:
        if rank == 0:
            yield ()
            return
        for number in divisors:
            if total % number == 0:
                for rest in extend(rank - 1, total // number):
                    yield (number, *rest)

    return iter(sorted(extend(rank, total), key=lambda parts: -math.prod(parts)))
