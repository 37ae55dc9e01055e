"""Program: tensors and the ops between them, before anything is split into blocks.

Nodes refer to each other by number, which is their position in ``Program.nodes``, and only to
earlier nodes. A node is split along the dimensions of its *space*: for an op these are the output
dimensions followed by the aggregated ones (``ij,jk->ik`` has the space i, k, j), for any other node
the dimensions of its tensor. Every node says which parts of its operands a block of its space
reads, and which kernel computes the block. Decomposition and lowering need to know no more.

Source: einsum programs over tensor relations, arXiv 2009.00524 and 2410.02682.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from doppler.graph.kernel import Box
from doppler.graph.scalar import Apply, Element, Scalar, count_flops, render

# By node name: the number of parts of each dimension of the node's space.
Splits: TypeAlias = Mapping[str, tuple[int, ...]]
# For each dimension of a tensor or space: its cut points, 0 < ... < extent.
Cuts: TypeAlias = tuple[tuple[int, ...], ...]


class Piece(NamedTuple):
    """A box of an operand, and where it goes in the tensor that a kernel receives.

    Attributes:
        operand: position in the node's ``operands``.
        box: of the operand.
        start: first index of the box in the kernel's tensor.
    """

    operand: int
    box: Box
    start: tuple[int, ...]


class KernelOperand(NamedTuple):
    """A tensor that the kernel of a block receives.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor.
        pieces: that fill it; it is 0 elsewhere.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the extents of a box.

    Args:
        box: (start, stop) of each dimension.
    """
    return tuple(stop - start for start, stop in box)


def _whole(operand: int, box: Box, dtype: str) -> KernelOperand:
    return KernelOperand(box_shape(box), dtype, (Piece(operand, box, (0,) * len(box)),))


@dataclass(frozen=True, kw_only=True)
class Node:
    """A tensor, and how it is computed.

    Attributes:
        name: unique in the program.
        shape: of the tensor.
        dtype: of the tensor.
        indices: one letter per dimension of the space; may be empty.
        operands: node numbers.
        operand_dtypes: dtype of each operand.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    indices: str = ""
    operands: tuple[int, ...] = ()
    operand_dtypes: tuple[str, ...] = ()

    @property
    def space(self) -> tuple[int, ...]:
        """Extents of the space, along whose dimensions the node is split."""
        return self.shape

    @property
    def kind(self) -> str:
        """Kind of this node's ops."""
        return type(self).__name__.lower()

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        """Return what a block reads.

        Args:
            box: of the block in the space.
        """
        raise NotImplementedError

    def operand_cuts(self, cuts: Cuts) -> list[list[set[int]]]:
        """Return where blocks begin and end to read, for each operand and each of its dimensions.

        The range that a block reads along a dimension of an operand depends on at most one
        dimension of the space, so each dimension of the space is cut alone.

        Args:
            cuts: of the space.
        """
        points: list[list[set[int]]] = [[] for _ in self.operands]
        whole = tuple((0, own[-1]) for own in cuts)
        boxes = [whole] + [
            (*whole[:dim], span, *whole[dim + 1 :])
            for dim, own in enumerate(cuts)
            for span in (pairwise(own) if len(own) > 2 else ())
        ]
        for box in boxes:
            for operand in self.kernel_operands(box):
                for piece in operand.pieces:
                    own = points[piece.operand]
                    own += [set() for _ in range(len(piece.box) - len(own))]
                    for known, ends in zip(own, piece.box, strict=True):
                        known.update(ends)
        return points

    def expression(self, box: Box) -> str:
        """Return the kernel of a block (`KernelSpec.expression`).

        Args:
            box: of the block in the space.
        """
        raise NotImplementedError

    def flops(self, box: Box) -> int:
        """Return the real floating-point operations of a block.

        Args:
            box: of the block in the space.
        """
        return 0

    def grain(self, dim: int) -> int:
        """Return how many neighbouring elements no cut may separate: 1, or 2 for pairs.

        Args:
            dim: of the space.
        """
        return 1

    def split_fault(self, dim: int, parts: int) -> str | None:
        """Return why a dimension cannot be split into a number of parts, or None if it can.

        Args:
            dim: of the space.
            parts: number of parts.
        """
        if 1 <= parts <= self.space[dim] // self.grain(dim):
            return None
        index = repr(self.indices[dim]) if self.indices else dim
        pairs = f" in groups of {self.grain(dim)}" if self.grain(dim) > 1 else ""
        return (
            f"cannot split index {index}, which has {self.space[dim]} elements{pairs}, "
            f"into {parts} parts"
        )


@dataclass(frozen=True, kw_only=True)
class Input(Node):
    """A tensor that is given.

    Attributes:
        is_weight: whether training changes it.
    """

    is_weight: bool = False


@dataclass(frozen=True, kw_only=True)
class Einsum(Node):
    """An op that aggregates a scalar function of its operands over dimensions of the join space.

    Attributes:
        indices: a letter for each dimension of the join space.
        extents: sizes of the join space.
        operand_dims: for each operand and each of its dimensions, the join dimension that indexes
            it. A join dimension that no operand has is a broadcast.
        join: the scalar function.
        aggregation: add, mul, max or min; None if and only if no dimension is aggregated.
    """

    extents: tuple[int, ...]
    operand_dims: tuple[tuple[int, ...], ...]
    join: Scalar
    aggregation: str | None = None

    def __post_init__(self) -> None:
        assert self.shape == self.extents[: len(self.shape)], self.name
        assert len(self.indices) == len(self.extents), self.name
        assert (self.aggregation is None) == (len(self.shape) == len(self.extents)), self.name

    @property
    def space(self) -> tuple[int, ...]:
        return self.extents

    @property
    def is_contraction(self) -> bool:
        """Whether it sums a product of two operands that together have every dimension."""
        return (
            self.join == Apply("mul", (Element(0), Element(1)))
            and self.aggregation == "add"
            and len({dim for dims in self.operand_dims for dim in dims}) == len(self.extents)
        )

    @property
    def kind(self) -> str:
        if self.is_contraction:
            return "matmul"
        return "elementwise" if self.aggregation is None else "reduction"

    @property
    def notation(self) -> str:
        """Indices of the operands and of the result: ``ij,jk->ik``."""
        read = ",".join("".join(self.indices[d] for d in dims) for dims in self.operand_dims)
        return f"{read}->{self.indices[: len(self.shape)]}"

    def operand_cuts(self, cuts: Cuts) -> list[list[set[int]]]:
        return [[set(cuts[dim]) for dim in dims] for dims in self.operand_dims]

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        return tuple(
            _whole(operand, tuple(box[dim] for dim in dims), dtype)
            for operand, (dims, dtype) in enumerate(
                zip(self.operand_dims, self.operand_dtypes, strict=True)
            )
        )

    def expression(self, box: Box) -> str:
        if self.is_contraction:
            return self.notation
        aggregation = f":{self.aggregation}" if self.aggregation else ""
        return f"{self.notation}:{render(self.join)}{aggregation}"

    def flops(self, box: Box) -> int:
        is_complex = "c64" in self.operand_dtypes
        each = count_flops(self.join, is_complex=is_complex)
        if self.aggregation is not None:
            each += 2 if is_complex else 1
        return each * math.prod(box_shape(box))


@dataclass(frozen=True, kw_only=True)
class Formation(Node):
    """The finished tensor of an aggregating op: aggregates the partial results of that op's blocks.

    Its operand is the aggregating op, which has no other consumer.

    Attributes:
        aggregation: of that op.
    """

    aggregation: str

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        """Return the block of one partial result; lowering repeats it for each partial result."""
        return (_whole(0, box, self.dtype),)

    def expression(self, box: Box) -> str:
        return f"formation:{self.aggregation}"


@dataclass(frozen=True, kw_only=True)
class Complexer(Node):
    """Turns the pairs (real, imaginary) of the last dimension into complex numbers, or back."""

    @property
    def to_complex(self) -> bool:
        """Whether it turns pairs into complex numbers."""
        return self.dtype == "c64"

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        start, stop = box[-1]
        last = (2 * start, 2 * stop) if self.to_complex else (start // 2, stop // 2)
        return (_whole(0, (*box[:-1], last), self.operand_dtypes[0]),)

    def expression(self, box: Box) -> str:
        return "complex" if self.to_complex else "real"

    def grain(self, dim: int) -> int:
        return 2 if not self.to_complex and dim == len(self.shape) - 1 else 1


@dataclass(frozen=True, kw_only=True)
class Squeezer(Node):
    """Adds or drops dimensions with one element.

    Attributes:
        dims: for each dimension of the operand the dimension of the result, or None if it is
            dropped.
    """

    dims: tuple[int | None, ...]

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        read = tuple((0, 1) if dim is None else box[dim] for dim in self.dims)
        return (_whole(0, read, self.dtype),)

    def expression(self, box: Box) -> str:
        return "copy"


@dataclass(frozen=True, kw_only=True)
class Fill(Node):
    """A tensor of constants.

    Attributes:
        below: the value.
        above: if given, the value of the elements whose last index is larger than their last but
            one; ``below`` then fills the lower triangle, including the diagonal.
    """

    below: float
    above: float | None = None

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        return ()

    def expression(self, box: Box) -> str:
        if self.above is None:
            return f"fill:{self.below}"
        (row, last_row), (column, last_column) = box[-2:]
        if last_column - 1 <= row:
            return f"fill:{self.below}"
        if column > last_row - 1:
            return f"fill:{self.above}"
        return f"fill:{self.below},{self.above},{row - column}"


@dataclass(frozen=True, kw_only=True)
class Select(Node):
    """Copies boxes of operands into a tensor: a slice, a concatenation, or padding with zeros.

    Attributes:
        parts: boxes of operands, and where they begin in the result; they do not overlap.
    """

    parts: tuple[Piece, ...]

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        pieces = []
        for operand, source, start in self.parts:
            read, begin = [], []
            for (low, high), (first, last), into in zip(box, source, start, strict=True):
                # The part covers into:into + last - first of the result.
                shared_low = max(low, into)
                shared_high = min(high, into + last - first)
                read.append((shared_low - into + first, shared_high - into + first))
                begin.append(shared_low - low)
            if all(low < high for low, high in read):
                pieces.append(Piece(operand, tuple(read), tuple(begin)))
        return (KernelOperand(box_shape(box), self.dtype, tuple(pieces)),)

    def expression(self, box: Box) -> str:
        return "copy"


@dataclass(frozen=True, kw_only=True)
class Program:
    """Nodes in the order of construction, for fixed values of the parameters.

    Attributes:
        name: of the program.
        parameters: values by name.
        nodes: each reads only earlier ones.
        given_splits: splits that the author of the program chose, by node name; other nodes stay
            whole.
        loss: number of the node that training minimises.
        copies_sums: whether the formation of an aggregation that is not split is an op that copies,
            as in the published graphs. Otherwise the aggregating op is read directly.
    """

    name: str
    parameters: Mapping[str, int]
    nodes: tuple[Node, ...]
    given_splits: Splits
    loss: int | None = None
    copies_sums: bool = True

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            assert all(operand < number for operand in node.operands), node.name
            assert node.operand_dtypes == tuple(self.nodes[one].dtype for one in node.operands), (
                node.name
            )
            for operand in () if isinstance(node, Formation) else node.operands:
                producer = self.nodes[operand]
                partial = isinstance(producer, Einsum) and producer.aggregation is not None
                assert not partial, f"{node.name} reads partial results of {producer.name}"

    @property
    def consumers(self) -> list[list[int]]:
        """Numbers of the nodes that read each node, each once, ascending."""
        readers: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for operand in dict.fromkeys(node.operands):
                readers[operand].append(number)
        return readers

    @property
    def outputs(self) -> list[int]:
        """Numbers of the nodes that no node reads, and of the loss."""
        return [
            number
            for number, readers in enumerate(self.consumers)
            if number == self.loss or not (readers or isinstance(self.nodes[number], Input))
        ]


def formation_of(op: Einsum, number: int) -> Formation:
    """Return the formation ``NAME.formation`` of an aggregating op.

    Args:
        op: that aggregates.
        number: of the op.
    """
    assert op.aggregation is not None, op.name
    return Formation(
        name=f"{op.name}.formation",
        shape=op.shape,
        dtype=op.dtype,
        operands=(number,),
        operand_dtypes=(op.dtype,),
        aggregation=op.aggregation,
    )


def insert_formations(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], list[int]]:
    """Put a formation behind every aggregating op and in front of its readers.

    Args:
        nodes: numbered, in their operands, by their position in this sequence.

    Returns:
        All nodes, renumbered, and per node of the argument the node that has its finished tensor.
    """
    result: list[Node] = []
    finished: list[int] = []
    for node in nodes:
        node = replace(node, operands=tuple(finished[operand] for operand in node.operands))
        result.append(node)
        if isinstance(node, Einsum) and node.aggregation is not None:
            result.append(formation_of(node, len(result) - 1))
        finished.append(len(result) - 1)
    return tuple(result), finished
