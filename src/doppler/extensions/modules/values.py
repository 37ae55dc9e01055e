"""Values: torch tensors as scalar functions of program tensors, computed only when needed.

A permutation, expansion or reshape of a tensor is the same program tensor, read by other indices. A
chain of elementwise ops is one scalar function. Both become part of the op that reads them. So they
cost an op of their own only if their elements have to be stored.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from string import ascii_letters
from typing import NamedTuple, TypeAlias

from doppler.einsum.program import Einsum, Fill, Input, Node, formation_of
from doppler.extensions.modules.simplifying import rounded, rounded_to, simplified
from doppler.graph.scalar import DTYPES, Apply, Element, Number, Scalar, map_elements

# For each dimension of a torch tensor its factors, outermost first; empty for one element.
Shape: TypeAlias = tuple[tuple[int, ...], ...]

# Function of (element, n) that equals aggregating n equal elements; maximum and minimum leave the
# element as it is.
_REPEATED = {"add": "mul", "mul": "pow"}


class Operand(NamedTuple):
    """A program tensor that a value reads.

    Attributes:
        node: number of its node.
        at: for each of its dimensions, the place among all factors of the value's shape.
    """

    node: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A torch tensor: a scalar function of program tensors.

    It is repeated along factors that none of these tensors has.

    Attributes:
        shape: factors of each dimension.
        scalar: the function of the operands' elements.
        operands: the program tensors.
        dtype: of the tensor.
        name: of the op that computes it, if one has to.
    """

    shape: Shape
    scalar: Scalar
    operands: tuple[Operand, ...]
    dtype: str
    name: str = ""

    @property
    def extents(self) -> tuple[int, ...]:
        """The factors of all dimensions in a row."""
        return tuple(factor for factors in self.shape for factor in factors)

    @property
    def is_stored(self) -> bool:
        """Whether it is a program tensor, possibly read by other indices."""
        return isinstance(self.scalar, Element)

    @property
    def is_at_hand(self) -> bool:
        """Whether several ops can read it without repeating work, except a cast."""
        match self.scalar:
            case Apply(function, (Element(),)):
                return function in DTYPES
        return self.is_stored or isinstance(self.scalar, Number)

    def places(self, dim: int) -> range:
        """Return the places of a dimension's factors among all factors.

        Args:
            dim: number of the dimension.
        """
        ends = [0, *accumulate(map(len, self.shape))]
        return range(ends[dim], ends[dim + 1])

    def regrouped(self, shape: Shape) -> "Value":
        """Return the same elements, in row-major order, with the same factors in other dimensions.

        Args:
            shape: of the result.
        """
        assert self.extents == tuple(factor for factors in shape for factor in factors)
        return replace(self, shape=shape)

    def moved(self, shape: Shape, places: Sequence[int]) -> "Value":
        """Return the value in a shape with other factors.

        Args:
            shape: of the result.
            places: for each factor of this value, its place among the factors of ``shape``.
        """
        operands = tuple(
            Operand(one.node, tuple(places[at] for at in one.at)) for one in self.operands
        )
        return replace(self, shape=shape, operands=operands)

    def permuted(self, dims: Sequence[int]) -> "Value":
        """Return the value with its dimensions in another order.

        Args:
            dims: dimension i of the result is dimension ``dims[i]``.
        """
        order = [place for dim in dims for place in self.places(dim)]
        places = [order.index(place) for place in range(len(order))]
        return self.moved(tuple(self.shape[dim] for dim in dims), places)

    def expanded(self, shape: Shape) -> "Value":
        """Repeat the value along new leading dimensions, and along those of one element.

        Args:
            shape: of the result.
        """
        new = len(shape) - len(self.shape)
        ends = [0, *accumulate(map(len, shape))]
        places = []
        for dim, factors in enumerate(self.shape):
            assert factors in ((), shape[new + dim]), (self.shape, shape)
            places += range(ends[new + dim], ends[new + dim] + len(factors))
        return self.moved(shape, places)

    def cast(self, dtype: str) -> "Value":
        """Return the value in another dtype; a constant is rounded to it.

        Args:
            dtype: of the result.
        """
        if dtype == self.dtype:
            return self
        if isinstance(self.scalar, Number):
            return constant(self.scalar.value, dtype, self.shape)
        return replace(self, scalar=Apply(dtype, (self.scalar,)), dtype=dtype)


def constant(number: float, dtype: str, shape: Shape = ()) -> Value:
    """Return a tensor of equal elements.

    Args:
        number: the elements, rounded to the dtype.
        dtype: of the tensor.
        shape: of the tensor.
    """
    return Value(shape, Number(rounded(number, dtype)), (), dtype)


def apply(function: str, values: Sequence[Value], dtype: str, shape: Shape) -> Value:
    """Apply a function of `graph.scalar.FUNCTIONS` to values that are broadcast to a shape.

    Args:
        function: its name.
        values: its arguments.
        dtype: of the result.
        shape: of the result.
    """
    operands: list[Operand] = []
    arguments = []
    for value in values:
        wide = value.expanded(shape)
        own = [operands.index(one) if one in operands else -1 for one in wide.operands]
        for k, one in enumerate(wide.operands):
            if own[k] < 0:
                own[k] = len(operands)
                operands.append(one)
        arguments.append(map_elements(wide.scalar, lambda k, own=own: Element(own[k])))
    scalar = rounded_to(simplified(function, arguments, dtype), dtype)
    return _with_used_operands(Value(shape, scalar, tuple(operands), dtype))


def _with_used_operands(value: Value) -> Value:
    """Drop operands that were simplified away."""
    used: list[int] = []

    def find(k: int) -> Element:
        if k not in used:
            used.append(k)
        return Element(used.index(k))

    scalar = map_elements(value.scalar, find)
    return replace(value, scalar=scalar, operands=tuple(value.operands[k] for k in used))


class Builder:
    """The nodes of a program under construction.

    Attributes:
        nodes: in order; a node reads only earlier ones.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: dict[str, None] = {}

    def parts(self) -> tuple[list[Node], dict[str, None]]:
        """Return the containers that grow with every node, so that a caller can undo additions."""
        return self.nodes, self._names

    def append(self, node: Node) -> int:
        """Add a node and, if it aggregates, a formation; a name that is taken gets a number.

        Args:
            node: to add.

        Returns:
            The number of the node that has the finished tensor.
        """
        name, times = node.name, 1
        while name in self._names:
            times += 1
            name = f"{node.name}_{times}"
        self._names[name] = None
        node = replace(node, name=name)
        self.nodes.append(node)
        number = len(self.nodes) - 1
        if isinstance(node, Einsum) and node.aggregation is not None:
            self._names[f"{name}.formation"] = None
            self.nodes.append(formation_of(node, number))
            number += 1
        return number

    def tensor(self, node: Node, shape: Shape) -> Value:
        """Add a node whose tensor has all factors of a shape as its dimensions.

        Args:
            node: to add.
            shape: of the value.
        """
        number = self.append(node)
        rank = len(node.shape)
        return Value(shape, Element(0), (Operand(number, tuple(range(rank))),), node.dtype)

    def input(self, name: str, shape: Shape, dtype: str, *, is_weight: bool = False) -> Value:
        """Add an input.

        Args:
            name: of the input.
            shape: of the value.
            dtype: of the tensor.
            is_weight: whether training changes it.
        """
        extents = tuple(factor for factors in shape for factor in factors)
        return self.tensor(Input(name=name, shape=extents, dtype=dtype, is_weight=is_weight), shape)

    def stored(self, value: Value, name: str) -> Value:
        """Return the value as a program tensor, computed now if necessary; it may be repeated.

        Args:
            value: to store.
            name: of the op, if one is added.
        """
        if value.is_stored and value.dtype == self.nodes[value.operands[0].node].dtype:
            return value
        present = sorted({at for one in value.operands for at in one.at})
        return self.computed(name, value, present)

    def whole(self, value: Value, name: str) -> Value:
        """Return the value as a program tensor that has all its elements, in row-major order.

        Args:
            value: to store.
            name: of the op, if one is added.
        """
        value = self.stored(value, name)
        every = list(range(len(value.extents)))
        if value.operands[0].at == tuple(every):
            return value
        return self.computed(name, value, every)

    def reduced(
        self, value: Value, places: Iterable[int], aggregation: str, name: str, shape: Shape
    ) -> Value:
        """Aggregate a value over some of its factors.

        Args:
            value: to aggregate.
            places: of the factors.
            aggregation: add, mul, max or min.
            name: of the op.
            shape: of the result.
        """
        present = {at for one in value.operands for at in one.at}
        gone = sorted(places)
        kept = [place for place in range(len(value.extents)) if place not in gone]
        # Along factors along which the value is only repeated, the result has a closed form.
        times = math.prod(value.extents[place] for place in gone if place not in present)
        if times > 1 and aggregation in _REPEATED:
            repeated = value.scalar, Number(float(times))
            scalar = simplified(_REPEATED[aggregation], repeated, value.dtype)
            value = replace(value, scalar=scalar)
        summed = [place for place in gone if place in present]
        if not summed:
            into = {place: k for k, place in enumerate(kept)}
            operands = tuple(
                Operand(one.node, tuple(into[at] for at in one.at)) for one in value.operands
            )
            scalar = rounded_to(value.scalar, value.dtype)
            return replace(value, shape=shape, scalar=scalar, operands=operands)
        return self.tensor(self._einsum(name, value, kept, summed, aggregation), shape)

    def contracted(self, one: Value, other: Value, *, name: str, dtype: str, dims: int) -> Value:
        """Return the product of [..., m, k] and [..., k, n], summed over k.

        Args:
            one: [..., m, k].
            other: [..., k, n].
            name: of the op.
            dtype: of the result.
            dims: number of leading dimensions, which both have in common.
        """
        one, other = self._factor(one, f"{name}.left"), self._factor(other, f"{name}.right")
        batch, rows, summed = one.shape[:dims], one.shape[-2], one.shape[-1]
        columns = other.shape[-1]
        assert other.shape == (*batch, summed, columns), (one.shape, other.shape)
        space = (*batch, rows, columns, summed)
        ends = [0, *accumulate(map(len, space))]
        ranges = [range(ends[i], ends[i + 1]) for i in range(len(space))]
        batches = [place for own in ranges[:dims] for place in own]
        of_rows, of_columns, of_sum = ranges[dims:]

        def product() -> tuple[Operand, ...]:
            left = one.moved(space, [*batches, *of_rows, *of_sum])
            right = other.moved(space, [*batches, *of_sum, *of_columns])
            # Both factors stay separate operands, even if they are the same tensor.
            return (*left.operands, *right.operands)

        # Each factor of the space must be a dimension of an operand. If both values are only
        # repeated along it, one of them is written out.
        if len({at for operand in product() for at in operand.at}) < ends[-1]:
            one = self.whole(one, f"{name}.left")
        if len({at for operand in product() for at in operand.at}) < ends[-1]:
            other = self.whole(other, f"{name}.right")
        joined = Apply("mul", (Element(0), Element(1)))
        value = Value(space, joined, product(), dtype)
        return self.reduced(value, of_sum, "add", name, (*batch, rows, columns))

    def _factor(self, value: Value, name: str) -> Value:
        stored = self.stored(value, name)
        return stored if len(stored.operands) == 1 else self.whole(stored, name)

    def computed(self, name: str, value: Value, present: list[int]) -> Value:
        """Compute a value as a new program tensor.

        Args:
            name: of the op, unless the value has a name.
            value: to compute.
            present: places of the factors that become dimensions.
        """
        extents, name = value.extents, value.name or name
        if not value.operands:
            assert isinstance(value.scalar, Number), value.scalar
            shape = tuple(extents[place] for place in present)
            fill = Fill(name=name, shape=shape, dtype=value.dtype, below=value.scalar.value)
            number = self.append(fill)
        else:
            number = self.append(self._einsum(name, value, present, [], None))
        return Value(value.shape, Element(0), (Operand(number, tuple(present)),), value.dtype)

    def _einsum(
        self, name: str, value: Value, kept: list[int], summed: list[int], aggregation: str | None
    ) -> Einsum:
        order, extents = [*kept, *summed], value.extents
        if len(order) > len(ascii_letters):
            raise ValueError(f"op {name!r}: {len(order)} factors of dimensions are too many")
        return Einsum(
            name=name,
            shape=tuple(extents[place] for place in kept),
            dtype=value.dtype,
            indices=ascii_letters[: len(order)],
            operands=tuple(one.node for one in value.operands),
            operand_dtypes=tuple(self.nodes[one.node].dtype for one in value.operands),
            extents=tuple(extents[place] for place in order),
            operand_dims=tuple(tuple(order.index(at) for at in one.at) for one in value.operands),
            join=value.scalar,
            aggregation=aggregation,
        )
