"""DataflowGraph: the operations of a workload and the data that flows between them.

Shape suffixes: V ops, E edges, R regions, I inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from doppler.graph.alternatives import Alternative
from doppler.graph.kernel import Box, KernelSpec, Read, Tensor
from doppler.graph.validation import validate

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _frozen(values: ArrayLike, dtype: type) -> NDArray:
    return _frozen_matrix(np.ravel(values), dtype)


def _frozen_matrix(values: ArrayLike, dtype: type) -> NDArray:
    array = np.array(values, dtype=dtype, order="C")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False, kw_only=True)
class Ops:
    """The ops of a graph, column by column; every column has one entry per op.

    The last four columns may be empty. A graph with kernels, reads and boxes can be executed; reads
    need the other two.

    Attributes:
        names: one for each op.
        kinds: what an op is, such as matmul; a device may not support a kind.
        dtypes: such as f32.
        flops: floating-point operations.
        read_bytes: bytes that an op reads.
        output_bytes: bytes of its result.
        node: the operation of the program that the op is a block of; -1: unknown.
        block: the number of the block in its node.
        group: ops of one group run on one device; -1: no group.
        pinned: the device that must run the op; -1: any.
        kernels: what each op computes.
        reads: the pieces that its operands consist of.
        boxes: the part of the node's tensor that its result is.
        alternatives: backends that can run the op; empty if it runs as its costs say.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    flops: FloatArray
    read_bytes: FloatArray
    output_bytes: FloatArray
    node: IntArray
    block: IntArray
    group: IntArray
    pinned: IntArray
    kernels: tuple[KernelSpec | None, ...] = ()
    reads: tuple[tuple[Read, ...], ...] = ()
    boxes: tuple[Box, ...] = ()
    alternatives: tuple[tuple[Alternative, ...], ...] = ()

    @classmethod
    def make(
        cls,
        *,
        flops: ArrayLike,
        names: Sequence[str] | None = None,
        kinds: Sequence[str] | str = "op",
        dtypes: Sequence[str] | str = "f32",
        read_bytes: ArrayLike | None = None,
        output_bytes: ArrayLike | None = None,
        node: ArrayLike | None = None,
        block: ArrayLike | None = None,
        group: ArrayLike | None = None,
        pinned: ArrayLike | None = None,
        kernels: Sequence[KernelSpec | None] = (),
        reads: Sequence[tuple[Read, ...]] = (),
        boxes: Sequence[Box] = (),
        alternatives: Sequence[Sequence[Alternative]] = (),
    ) -> "Ops":
        """Make the columns of a graph's ops; those that are not given get defaults.

        Args:
            flops: [V] floating-point operations.
            names: [V]; ``op0, op1, ...`` unless given.
            kinds: [V], or one for all.
            dtypes: [V], or one for all.
            read_bytes: [V]; 0 unless given.
            output_bytes: [V]; 0 unless given.
            node: [V]; -1 unless given.
            block: [V]; numbered from 0 unless given.
            group: [V]; -1 unless given.
            pinned: [V]; -1 unless given.
            kernels: [V] or empty.
            reads: [V] or empty.
            boxes: [V] or empty.
            alternatives: [V] or empty.
        """
        flops_V = _frozen(flops, np.float64)
        num = len(flops_V)
        return cls(
            names=tuple(names) if names is not None else tuple(f"op{v}" for v in range(num)),
            kinds=(kinds,) * num if isinstance(kinds, str) else tuple(kinds),
            dtypes=(dtypes,) * num if isinstance(dtypes, str) else tuple(dtypes),
            flops=flops_V,
            read_bytes=_frozen(np.zeros(num) if read_bytes is None else read_bytes, np.float64),
            output_bytes=_frozen(
                np.zeros(num) if output_bytes is None else output_bytes, np.float64
            ),
            node=_frozen(np.full(num, -1) if node is None else node, np.int64),
            block=_frozen(np.arange(num) if block is None else block, np.int64),
            group=_frozen(np.full(num, -1) if group is None else group, np.int64),
            pinned=_frozen(np.full(num, -1) if pinned is None else pinned, np.int64),
            kernels=tuple(kernels),
            reads=tuple(reads),
            boxes=tuple(boxes),
            alternatives=tuple(map(tuple, alternatives)),
        )

    def __len__(self) -> int:
        return len(self.flops)


@dataclass(frozen=True, eq=False, kw_only=True)
class Edges:
    """Edges of a graph: op ``dst`` reads the region ``region`` of op ``src``.

    Edges with equal (src, region) carry the same bytes, once to each device. Overlapping regions
    count separately.

    Attributes:
        src: the op that is read.
        dst: the op that reads.
        region: number of the region of ``src``.
        bytes: size of the region.
    """

    src: IntArray
    dst: IntArray
    region: IntArray
    bytes: FloatArray

    @classmethod
    def make(
        cls,
        *,
        src: ArrayLike,
        dst: ArrayLike,
        bytes: ArrayLike,
        region: ArrayLike | None = None,
    ) -> "Edges":
        """Make the columns of a graph's edges.

        Args:
            src: [E] the op that is read.
            dst: [E] the op that reads.
            bytes: [E] size of the region.
            region: [E]; 0 unless given: one region per producing op.
        """
        src_E = _frozen(src, np.int64)
        return cls(
            src=src_E,
            dst=_frozen(dst, np.int64),
            region=_frozen(np.zeros(len(src_E)) if region is None else region, np.int64),
            bytes=_frozen(bytes, np.float64),
        )

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs:
    """Weights and data. They are not placed: from the start they are wherever an op reads them.

    Attributes:
        names: one for each input.
        node: as in `Ops`.
        block: as in `Ops`.
        bytes: size of each input.
        consumers: the ops that read each input.
        boxes: as in `Ops`.
    """

    names: tuple[str, ...] = ()
    node: IntArray
    block: IntArray
    bytes: FloatArray
    consumers: tuple[tuple[int, ...], ...] = ()
    boxes: tuple[Box, ...] = ()

    @classmethod
    def make(
        cls,
        *,
        names: Sequence[str] = (),
        bytes: ArrayLike = (),
        consumers: Sequence[Sequence[int]] = (),
        node: ArrayLike | None = None,
        block: ArrayLike | None = None,
        boxes: Sequence[Box] = (),
    ) -> "Inputs":
        """Make the columns of a graph's inputs; those that are not given get defaults.

        Args:
            names: [I] of the inputs.
            bytes: [I] sizes.
            consumers: [I] ops that read each input.
            node: [I]; -1 unless given.
            block: [I]; numbered from 0 unless given.
            boxes: [I] or empty.
        """
        num = len(names)
        return cls(
            names=tuple(names),
            node=_frozen(np.full(num, -1) if node is None else node, np.int64),
            block=_frozen(np.arange(num) if block is None else block, np.int64),
            bytes=_frozen(bytes, np.float64),
            consumers=tuple(tuple(int(v) for v in ops) for ops in consumers),
            boxes=tuple(boxes),
        )

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenCosts:
    """Times that come with a graph.

    Attributes:
        op_seconds: seconds per op: [V], the same on every device; or [V, D], inf where a device
            cannot run the op; None: computed from the cluster's speeds.
        transfer_seconds: seconds per edge to move its region to another device: [E], the same on
            every link; or [E, K, K] by the ``kinds`` of the sender and the receiver, NaN where
            unknown; None: computed from the cluster's links.
        kinds: [K] kinds of devices, sorted.
        counts_memory: whether the bytes of ops and devices count; otherwise memory is unlimited.
    """

    op_seconds: FloatArray | None
    transfer_seconds: FloatArray | None
    kinds: tuple[str, ...] = ()
    counts_memory: bool = False

    @property
    def replaced(self) -> str:
        """The properties of a cluster that they replace, in words."""
        parts = [
            *(["speeds"] if self.op_seconds is not None else []),
            *(["links"] if self.transfer_seconds is not None else []),
            *([] if self.counts_memory else ["memory sizes"]),
        ]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    @classmethod
    def make(
        cls,
        *,
        op_seconds: ArrayLike | None,
        transfer_seconds: ArrayLike | None,
        kinds: Sequence[str] = (),
        counts_memory: bool = False,
    ) -> "GivenCosts":
        """Make given costs from arrays; kinds are sorted.

        Args:
            op_seconds: [V] or [V, D]; None: computed from the cluster's speeds.
            transfer_seconds: [E] or [E, K, K]; None: computed from the cluster's links.
            kinds: [K] kinds of devices.
            counts_memory: whether the bytes of ops and devices count.
        """
        order_K = np.argsort(np.array(kinds, dtype=np.str_))
        if transfer_seconds is not None:
            transfer_seconds = np.array(transfer_seconds, dtype=np.float64)
            if transfer_seconds.ndim == 3 and transfer_seconds.shape[1:] == (len(kinds),) * 2:
                transfer_seconds = transfer_seconds[:, order_K][:, :, order_K]
            transfer_seconds = _frozen_matrix(transfer_seconds, np.float64)
        return cls(
            op_seconds=None if op_seconds is None else _frozen_matrix(op_seconds, np.float64),
            transfer_seconds=transfer_seconds,
            kinds=tuple(kinds[int(k)] for k in order_K),
            counts_memory=counts_memory,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Regions:
    """The edges of a graph grouped by what moves: one region is one (src, region) pair.

    Regions are numbered by (src, region label).

    Attributes:
        src: [R] op that computes the region.
        bytes: [R] size.
        op_ptr: [V + 1] the regions of op v are ``op_ptr[v]:op_ptr[v + 1]``.
        consumer_ptr: [R + 1] the consumers of region r are
            ``consumers[consumer_ptr[r]:consumer_ptr[r + 1]]``, ascending.
        consumers: [E] ops that read regions.
        of_edge: [E] region of each edge.
    """

    src: IntArray
    bytes: FloatArray
    op_ptr: IntArray
    consumer_ptr: IntArray
    consumers: IntArray
    of_edge: IntArray

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False, kw_only=True)
class DataflowGraph:
    """An asynchronous dataflow graph: ops, edges, inputs and, optionally, given costs.

    The constructor validates it: no cycles, finite and non-negative costs, indices in range, no op
    that feeds itself, one edge per (src, dst, region), and equal bytes on all edges of a region.
    Kernels, boxes and reads must fit together and agree with edges and consumers.

    Attributes:
        name: of the graph.
        ops: that are placed.
        edges: which op reads which region of which other op.
        inputs: weights and data, which are not placed.
        given_costs: times that come with the graph instead of being modelled.
        tensors: that ``ops.node`` and ``inputs.node`` refer to; empty if unknown.
        notes: what was dropped or assumed when the graph was read, a line each.

    Raises:
        InputError: one line that names the op, edge or input.
    """

    name: str
    ops: Ops
    edges: Edges
    inputs: Inputs
    given_costs: GivenCosts | None = None
    tensors: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate(self)

    @property
    def num_ops(self) -> int:
        """Number of ops, V."""
        return len(self.ops)

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return len(self.edges)

    @cached_property
    def regions(self) -> Regions:
        """The edges grouped by (src, region)."""
        edges = self.edges
        order_E = np.lexsort((edges.dst, edges.region, edges.src))
        src_E, label_E = edges.src[order_E], edges.region[order_E]
        first_E = np.ones(len(order_E), dtype=bool)
        first_E[1:] = (src_E[1:] != src_E[:-1]) | (label_E[1:] != label_E[:-1])
        start_R = np.flatnonzero(first_E)
        of_edge = np.empty(len(order_E), dtype=np.int64)
        of_edge[order_E] = np.cumsum(first_E) - 1
        return Regions(
            src=_frozen(src_E[start_R], np.int64),
            bytes=_frozen(edges.bytes[order_E][start_R], np.float64),
            op_ptr=_frozen(np.searchsorted(src_E[start_R], np.arange(self.num_ops + 1)), np.int64),
            consumer_ptr=_frozen(np.append(start_R, len(order_E)), np.int64),
            consumers=_frozen(edges.dst[order_E], np.int64),
            of_edge=_frozen(of_edge, np.int64),
        )

    def __repr__(self) -> str:
        return (
            f"DataflowGraph({self.name!r}: {self.num_ops} ops, {self.num_edges} edges, "
            f"{len(self.inputs)} inputs)"
        )
