"""Values: torch tensors as scalar functions of program tensors, computed when somebody must.

A permutation, an expansion or a reshape of a tensor is the same program tensor, read by other
indices; a chain of elementwise ops is one scalar function. Both become part of the op that reads
them, so that they cost an op only where their elements are needed as such.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from string import ascii_letters
from typing import NamedTuple, TypeAlias

from doppler.einsum.program import Einsum, Fill, Input, Node, formation_of
from doppler.graph.scalar import DTYPES, Apply, Element, Number, Scalar, map_elements
from doppler.graph.scalar_algebra import add, conj, div, mul, neg, power, sub

# For each dimension of a torch tensor its factors, the outermost first; none for one element.
Shape: TypeAlias = tuple[tuple[int, ...], ...]

_SIMPLIFYING = {
    **{"add": add, "sub": sub, "mul": mul, "div": div, "neg": neg, "pow": power, "conj": conj}
}

# Dtypes that are computed in f32 and rounded.
HALF = ("f16", "bf16")

# Result of aggregating n equal elements; for maximum and minimum the element itself.
_REPEATED = {"add": mul, "mul": power}


class Operand(NamedTuple):
    """A program tensor in the space of a value.

    Attributes:
        at: per dimension of the tensor, the place among all factors of the value's shape.
    """

    node: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A torch tensor: a scalar function of program tensors, repeated along factors that none has.

    Attributes:
        name: for the op that computes it, if one must.
    """

    shape: Shape
    scalar: Scalar
    operands: tuple[Operand, ...]
    dtype: str
    name: str = ""

    @property
    def extents(self) -> tuple[int, ...]:
        """All factors of all dimensions."""
        return tuple(factor for factors in self.shape for factor in factors)

    @property
    def is_stored(self) -> bool:
        """Whether it is a program tensor, or one read by other indices."""
        return isinstance(self.scalar, Element)

    @property
    def is_at_hand(self) -> bool:
        """Whether nothing is computed again where several ops read it: at most a cast."""
        match self.scalar:
            case Apply(function, (Element(),)):
                return function in DTYPES
        return self.is_stored or isinstance(self.scalar, Number)

    def places(self, dim: int) -> range:
        """The places of the factors of a dimension among all factors."""
        ends = [0, *accumulate(map(len, self.shape))]
        return range(ends[dim], ends[dim + 1])

    def regrouped(self, shape: Shape) -> "Value":
        """The same elements in row-major order, in dimensions that have the same factors."""
        assert self.extents == tuple(factor for factors in shape for factor in factors)
        return replace(self, shape=shape)

    def moved(self, shape: Shape, places: Sequence[int]) -> "Value":
        """In another space. places: per factor of this value's shape its place among the new's."""
        operands = tuple(
            Operand(one.node, tuple(places[at] for at in one.at)) for one in self.operands
        )
        return replace(self, shape=shape, operands=operands)

    def permuted(self, dims: Sequence[int]) -> "Value":
        """Dimension i of the result is dimension ``dims[i]``."""
        order = [place for dim in dims for place in self.places(dim)]
        places = [order.index(place) for place in range(len(order))]
        return self.moved(tuple(self.shape[dim] for dim in dims), places)

    def expanded(self, shape: Shape) -> "Value":
        """Repeated along new leading dimensions, and along those that had one element."""
        new = len(shape) - len(self.shape)
        ends = [0, *accumulate(map(len, shape))]
        places = []
        for dim, factors in enumerate(self.shape):
            assert factors in ((), shape[new + dim]), (self.shape, shape)
            places += range(ends[new + dim], ends[new + dim] + len(factors))
        return self.moved(shape, places)

    def cast(self, dtype: str) -> "Value":
        """In another dtype; constants have that of what they meet."""
        if dtype == self.dtype or isinstance(self.scalar, Number):
            return replace(self, dtype=dtype)
        return replace(self, scalar=Apply(dtype, (self.scalar,)), dtype=dtype)


def constant(number: float, dtype: str, shape: Shape = ()) -> Value:
    """A tensor of one constant."""
    return Value(shape, Number(float(number)), (), dtype)


def apply(function: str, values: Sequence[Value], dtype: str, shape: Shape) -> Value:
    """A function of `graph.scalar.FUNCTIONS` of values that are broadcast to a shape."""
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
    simplify = None if any(map(_is_nothing, arguments)) else _SIMPLIFYING.get(function)
    scalar = simplify(*arguments) if simplify else Apply(function, tuple(arguments))
    return _with_used_operands(Value(shape, scalar, tuple(operands), dtype))


def _is_nothing(scalar: Scalar) -> bool:
    """Whether it is 0, or 0 times something: which is not 0 where that is infinite."""
    match scalar:
        case Number(0) | Apply("mul", (Number(0), _)):
            return True
    return False


def _with_used_operands(value: Value) -> Value:
    """Without operands that were simplified away."""
    used: list[int] = []

    def find(k: int) -> Element:
        if k not in used:
            used.append(k)
        return Element(used.index(k))

    scalar = map_elements(value.scalar, find)
    return replace(value, scalar=scalar, operands=tuple(value.operands[k] for k in used))


class Builder:
    """The nodes of a program, one behind the other."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: dict[str, None] = {}

    def parts(self) -> tuple[list[Node], dict[str, None]]:
        """All that grows with every node, the last one behind."""
        return self.nodes, self._names

    def append(self, node: Node) -> int:
        """Add a node, by another name if its own is taken, and a formation if it aggregates.

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
        """Add a node whose tensor has all factors of a shape as its dimensions."""
        number = self.append(node)
        rank = len(node.shape)
        return Value(shape, Element(0), (Operand(number, tuple(range(rank))),), node.dtype)

    def input(self, name: str, shape: Shape, dtype: str, *, is_weight: bool = False) -> Value:
        """Add a tensor that is given."""
        extents = tuple(factor for factors in shape for factor in factors)
        return self.tensor(Input(name=name, shape=extents, dtype=dtype, is_weight=is_weight), shape)

    def stored(self, value: Value, name: str) -> Value:
        """The value as a program tensor read by some indices, computed here if it is none yet."""
        if value.is_stored and value.dtype == self.nodes[value.operands[0].node].dtype:
            return value
        present = sorted({at for one in value.operands for at in one.at})
        return self.computed(name, value, present)

    def whole(self, value: Value, name: str) -> Value:
        """The value as a program tensor that has all its elements, row-major."""
        value = self.stored(value, name)
        every = list(range(len(value.extents)))
        if value.operands[0].at == tuple(every):
            return value
        return self.computed(name, value, every)

    def reduced(
        self, value: Value, places: Iterable[int], aggregation: str, name: str, shape: Shape
    ) -> Value:
        """Aggregated over some of its factors. shape: of the result."""
        present = {at for one in value.operands for at in one.at}
        gone = sorted(places)
        kept = [place for place in range(len(value.extents)) if place not in gone]
        # Along what it is only repeated, nothing need be computed.
        times = math.prod(value.extents[place] for place in gone if place not in present)
        if times > 1 and aggregation in _REPEATED:
            scalar = _REPEATED[aggregation](value.scalar, Number(float(times)))
            value = replace(value, scalar=scalar)
        summed = [place for place in gone if place in present]
        if not summed:
            into = {place: k for k, place in enumerate(kept)}
            operands = tuple(
                Operand(one.node, tuple(into[at] for at in one.at)) for one in value.operands
            )
            return replace(value, shape=shape, operands=operands)
        return self.tensor(self._einsum(name, value, kept, summed, aggregation), shape)

    def contracted(self, one: Value, other: Value, *, name: str, dtype: str, dims: int) -> Value:
        """The product of [..., m, k] and [..., k, n], summed over k.

        dims: how many leading dimensions both have in common.
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
            # Both factors stay operands of their own, even where they are the same tensor.
            return (*left.operands, *right.operands)

        # What one factor repeats along is read from the other; only what both do is written out.
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
        """The value as a new program tensor, with some of its factors as dimensions."""
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
