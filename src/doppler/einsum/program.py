"""Program: what is computed, before anything is split: tensors and the ops between them.

Nodes refer to each other by number, their position in ``Program.nodes``, and only to nodes before
them. The dimensions of an op are its join space: the output dimensions first, then the aggregated
ones (``ij,jk->ik`` has the join space i, k, j).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

# bytes of one element
DTYPES = {"f16": 2, "f32": 4, "f64": 8}


@dataclass(frozen=True)
class Apply:
    """A scalar function, ``add`` or ``mul``, of operands of an op or of other functions."""

    function: str
    arguments: tuple["Scalar", ...]


# An int is the number of an operand of the op: 0 is the first.
Scalar: TypeAlias = int | Apply


@dataclass(frozen=True, kw_only=True)
class Input:
    """A tensor that is given: a weight or data."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Einsum:
    """One op: aggregate, over some dimensions of the join space, a scalar function of operands.

    indices: one letter per join dimension. extents: the size of each. output_rank: how many of
    them are output dimensions. operands: node numbers. operand_dims: per operand and dimension of
    it, the join dimension that it is indexed by. join: the scalar function. aggregation: ``add``,
    or None iff no dimension is aggregated.
    """

    name: str
    dtype: str
    indices: str
    extents: tuple[int, ...]
    output_rank: int
    operands: tuple[int, ...]
    operand_dims: tuple[tuple[int, ...], ...]
    join: Scalar
    aggregation: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the output dimensions."""
        return self.extents[: self.output_rank]

    @property
    def is_contraction(self) -> bool:
        """Whether it sums a product of two operands that together have every dimension."""
        bound = {d for dims in self.operand_dims for d in dims}
        return (
            self.join == Apply("mul", (0, 1))
            and self.aggregation == "add"
            and len(bound) == len(self.extents)
        )

    @property
    def flops_per_join_element(self) -> int:
        """Scalar functions of the join, and one more for the aggregation."""
        return _count_functions(self.join) + (self.aggregation is not None)

    @property
    def kind(self) -> str:
        """What the ops of this node are called: matmul, reduction or elementwise."""
        if self.is_contraction:
            return "matmul"
        return "elementwise" if self.aggregation is None else "reduction"

    @property
    def expression(self) -> str:
        """The op as a kernel names it: ``ij,jk->ik`` for a contraction, ``add`` for A + B.

        In general ``notation:join[:aggregation]``, operands by number: ``ij,j->ij:add(0,1)``.
        """
        notation = ",".join("".join(self.indices[d] for d in dims) for dims in self.operand_dims)
        notation = f"{notation}->{self.indices[: self.output_rank]}"
        if self.is_contraction:
            return notation
        aligned = all(dims == tuple(range(len(self.extents))) for dims in self.operand_dims)
        if isinstance(self.join, Apply) and aligned and self.aggregation is None:
            if self.join.arguments == tuple(range(len(self.operands))):
                return self.join.function
        aggregation = f":{self.aggregation}" if self.aggregation else ""
        return f"{notation}:{_render(self.join)}{aggregation}"

    def split_fault(self, dim: int, parts: int) -> str | None:
        """Why the join dimension cannot be split into so many parts, or None if it can."""
        if 1 <= parts <= self.extents[dim]:
            return None
        index, extent = self.indices[dim], self.extents[dim]
        return f"cannot split index {index!r}, which has {extent} elements, into {parts} parts"


@dataclass(frozen=True, kw_only=True)
class Formation:
    """The finished tensor of an aggregating op: adds up what the splits of that op left partial.

    operand: number of the aggregating op, whose only consumer this is. aggregation: that op's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    operand: int
    aggregation: str


Node: TypeAlias = Input | Einsum | Formation

# Per op name: into how many parts each of its join dimensions is split.
Splits: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Nodes in the order of construction, for fixed values of the parameters.

    given_splits: the splits that the author of the program chose, for every Einsum by name.
    """

    name: str
    parameters: Mapping[str, int]
    nodes: tuple[Node, ...]
    given_splits: Splits

    def __post_init__(self) -> None:
        for node in self.nodes:
            for operand in node.operands if isinstance(node, Einsum) else ():
                producer = self.nodes[operand]
                partial = isinstance(producer, Einsum) and producer.aggregation is not None
                assert not partial, f"{node.name} reads partial results of {producer.name}"


def insert_formations(nodes: Sequence[Input | Einsum]) -> tuple[Node, ...]:
    """Put a Formation, ``NAME.formation``, behind every aggregating op and in front of its readers.

    Args:
        nodes: numbered, in their operands, by their position in this sequence.

    Returns:
        All nodes, renumbered.
    """
    result: list[Node] = []
    read_from: list[int] = []  # per node of the argument: the node that has its finished tensor
    for node in nodes:
        if isinstance(node, Einsum):
            node = replace(node, operands=tuple(read_from[operand] for operand in node.operands))
        result.append(node)
        if isinstance(node, Einsum) and node.aggregation is not None:
            formation = Formation(
                name=f"{node.name}.formation",
                shape=node.shape,
                dtype=node.dtype,
                operand=len(result) - 1,
                aggregation=node.aggregation,
            )
            result.append(formation)
        read_from.append(len(result) - 1)
    return tuple(result)


def _count_functions(scalar: Scalar) -> int:
    if isinstance(scalar, int):
        return 0
    return 1 + sum(_count_functions(argument) for argument in scalar.arguments)


def _render(scalar: Scalar) -> str:
    if isinstance(scalar, int):
        return str(scalar)
    return f"{scalar.function}({','.join(_render(argument) for argument in scalar.arguments)})"
