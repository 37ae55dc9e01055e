"""DataflowGraph: the operations of a workload and the data that flows between them.

Shape suffixes: V ops, E edges, R regions, I inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from doppler.errors import InputError
from doppler.graph.levels import find_cycle

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Box = tuple[tuple[int, int], ...]


def _frozen(values: ArrayLike, dtype: type) -> NDArray:
    array = np.array(values, dtype=dtype, order="C").reshape(-1)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """What one op computes, as data: it is stored, hashed, calibrated and compiled elsewhere.

    expression: index notation (``"ij,jk->ik"``) or an operator's name.
    operand_shapes: the shape of each operand that the kernel receives.
    output_shape: the shape of its result.
    dtype: of the result (f16, f32, f64, c64).
    input_slices: per operand, the box ``((start, stop), ...)`` of the producing tensor it reads.
    """

    expression: str
    operand_shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    dtype: str
    input_slices: tuple[Box, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Ops:
    """The ops of a graph, column by column; every column has one entry per op.

    names, kinds, dtypes: strings. flops: floating-point operations. read_bytes, output_bytes:
    bytes. node, block: the operation of the program that the op is a block of and the block's
    number in it; node -1 means unknown. kernels: one KernelSpec per op, or empty for none.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    flops: FloatArray
    read_bytes: FloatArray
    output_bytes: FloatArray
    node: IntArray
    block: IntArray
    kernels: tuple[KernelSpec | None, ...] = ()

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
        kernels: Sequence[KernelSpec | None] = (),
    ) -> "Ops":
        """Fill the columns that are not given: names ``op0, op1, ...``, zero bytes, no nodes."""
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
            kernels=tuple(kernels),
        )

    def __len__(self) -> int:
        return len(self.flops)


@dataclass(frozen=True, eq=False, kw_only=True)
class Edges:
    """Edges of a graph: op ``dst`` reads ``bytes`` bytes, the region ``region`` of op ``src``.

    Edges with equal (src, region) carry the same bytes. Overlapping regions count separately.
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
        """Fill the regions that are not given: one region, number 0, per producing op."""
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
    """Weights and data. They are not placed: they lie, from time 0, wherever an op reads them.

    consumers: the ops that read the input, per input. node, block: as in Ops.
    """

    names: tuple[str, ...] = ()
    node: IntArray
    block: IntArray
    bytes: FloatArray
    consumers: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def make(
        cls,
        *,
        names: Sequence[str] = (),
        bytes: ArrayLike = (),
        consumers: Sequence[Sequence[int]] = (),
        node: ArrayLike | None = None,
        block: ArrayLike | None = None,
    ) -> "Inputs":
        """Fill the columns that are not given: nodes unknown, blocks numbered from 0."""
        num = len(names)
        return cls(
            names=tuple(names),
            node=_frozen(np.full(num, -1) if node is None else node, np.int64),
            block=_frozen(np.arange(num) if block is None else block, np.int64),
            bytes=_frozen(bytes, np.float64),
            consumers=tuple(tuple(int(v) for v in ops) for ops in consumers),
        )

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenCosts:
    """Times that come with a graph, the same on every device and every link.

    op_seconds: per op. transfer_seconds: per edge, to move its region to another device.
    """

    op_seconds: FloatArray
    transfer_seconds: FloatArray

    @classmethod
    def make(cls, *, op_seconds: ArrayLike, transfer_seconds: ArrayLike) -> "GivenCosts":
        """Freeze both columns."""
        return cls(
            op_seconds=_frozen(op_seconds, np.float64),
            transfer_seconds=_frozen(transfer_seconds, np.float64),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Regions:
    """The edges of a graph grouped by what moves: one region is one (src, region) pair.

    Regions are numbered by (src, region label), so those of op v are
    ``op_ptr[v]:op_ptr[v + 1]``; the consumers of region r, ascending, are
    ``consumers[consumer_ptr[r]:consumer_ptr[r + 1]]``. ``of_edge`` is each edge's region.
    """

    src: IntArray  # [R]
    bytes: FloatArray  # [R]
    op_ptr: IntArray  # [V + 1]
    consumer_ptr: IntArray  # [R + 1]
    consumers: IntArray  # [E]
    of_edge: IntArray  # [E]

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False, kw_only=True)
class DataflowGraph:
    """An asynchronous dataflow graph: ops, edges with regions, inputs, optional given costs.

    Validated when made: acyclic, finite, non-negative, ids in range, no op that feeds itself, one
    edge per (src, dst, region), equal bytes on edges of one region.

    Raises:
        InputError: in one line that names the op, edge or input at fault.
    """

    name: str
    ops: Ops
    edges: Edges
    inputs: Inputs
    given_costs: GivenCosts | None = None

    def __post_init__(self) -> None:
        _validate(self)

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


def _validate(graph: DataflowGraph) -> None:
    ops, edges, inputs = graph.ops, graph.edges, graph.inputs
    where = f"graph {graph.name!r}"
    num = len(ops)
    if num == 0:
        raise InputError(f"{where}: has no ops")
    for column in ("names", "kinds", "dtypes", "read_bytes", "output_bytes", "node", "block"):
        if len(getattr(ops, column)) != num:
            raise InputError(f"{where}: {len(getattr(ops, column))} op {column} for {num} ops")
    if len(ops.kernels) not in (0, num):
        raise InputError(f"{where}: {len(ops.kernels)} kernels for {num} ops")
    for column in ("flops", "read_bytes", "output_bytes"):
        _check_cost(getattr(ops, column), where, column, lambda v: f"op {v} ({ops.names[v]!r})")

    for column in ("dst", "region", "bytes"):
        if len(getattr(edges, column)) != len(edges):
            raise InputError(
                f"{where}: {len(edges)} edge src, {len(getattr(edges, column))} {column}"
            )

    def edge_name(e: int) -> str:
        return f"edge {e} ({edges.src[e]} -> {edges.dst[e]})"

    for end in (edges.src, edges.dst):
        bad = np.flatnonzero((end < 0) | (end >= num))
        if len(bad):
            raise InputError(
                f"{where}: {edge_name(bad[0])} names op {end[bad[0]]}, "
                f"but the ops are 0 to {num - 1}"
            )
    bad = np.flatnonzero(edges.src == edges.dst)
    if len(bad):
        raise InputError(f"{where}: {edge_name(bad[0])} makes an op feed itself")
    _check_cost(edges.bytes, where, "bytes", edge_name)
    _check_regions(graph, where, edge_name, edges.bytes, "bytes")
    _check_inputs(inputs, num, where)
    if graph.given_costs is not None:
        given = graph.given_costs
        if len(given.op_seconds) != num or len(given.transfer_seconds) != len(edges):
            raise InputError(
                f"{where}: given costs for {len(given.op_seconds)} ops and "
                f"{len(given.transfer_seconds)} edges, but it has {num} and {len(edges)}"
            )
        _check_cost(
            given.op_seconds, where, "given seconds", lambda v: f"op {v} ({ops.names[v]!r})"
        )
        _check_cost(given.transfer_seconds, where, "given seconds", edge_name)
        _check_regions(graph, where, edge_name, given.transfer_seconds, "given seconds")
    cycle = find_cycle(num, edges.src, edges.dst)
    if cycle:
        shown = " -> ".join(str(v) for v in [*cycle[:6], *(["..."] if len(cycle) > 6 else [])])
        raise InputError(
            f"{where}: cycle through op {cycle[0]} ({ops.names[cycle[0]]!r}): {shown} -> {cycle[0]}"
        )


def _check_cost(values: FloatArray, where: str, column: str, name) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise InputError(
            f"{where}: {name(bad[0])} has {column} {values[bad[0]]:g}: "
            "must be finite and not negative"
        )


def _check_regions(
    graph: DataflowGraph, where: str, edge_name, values_E: FloatArray, column: str
) -> None:
    edges = graph.edges
    order_E = np.lexsort((edges.dst, edges.region, edges.src))
    src_E, region_E, dst_E = edges.src[order_E], edges.region[order_E], edges.dst[order_E]
    same_E = (src_E[1:] == src_E[:-1]) & (region_E[1:] == region_E[:-1])
    bad = np.flatnonzero(same_E & (dst_E[1:] == dst_E[:-1]))
    if len(bad):
        raise InputError(f"{where}: {edge_name(order_E[bad[0] + 1])} is there twice")
    sorted_E = values_E[order_E]
    bad = np.flatnonzero(same_E & (sorted_E[1:] != sorted_E[:-1]))
    if len(bad):
        one, other = order_E[bad[0]], order_E[bad[0] + 1]
        raise InputError(
            f"{where}: {edge_name(one)} and {edge_name(other)} carry the same region with "
            f"{column} {values_E[one]:g} and {values_E[other]:g}"
        )


def _check_inputs(inputs: Inputs, num_ops: int, where: str) -> None:
    for column in ("node", "block", "bytes", "consumers"):
        if len(getattr(inputs, column)) != len(inputs):
            raise InputError(
                f"{where}: {len(getattr(inputs, column))} input {column} for {len(inputs)} inputs"
            )
    _check_cost(inputs.bytes, where, "bytes", lambda i: f"input {i} ({inputs.names[i]!r})")
    for name, consumers in zip(inputs.names, inputs.consumers, strict=True):
        for op in consumers:
            if not 0 <= op < num_ops:
                raise InputError(
                    f"{where}: input {name!r} feeds op {op}, but the ops are 0 to {num_ops - 1}"
                )
