"""Views that select elements of a tensor, and concatenations."""

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from doppler.einsum.program import Piece, Select, Squeezer
from doppler.extensions.modules.ties import cat_dim, shape_of, split_part
from doppler.extensions.modules.values import Builder, Operand, Shape, Value
from doppler.graph import Box
from doppler.graph.scalar import Element

# For each factor of a dimension: (start, stop).
Spans = list[tuple[int, int]]


def index_of(node: fx.Node) -> tuple[int, int, int, int]:
    """Return dimension, start, step and number of elements of a ``select``, as for a slice.

    Args:
        node: the call of ``select``.
    """
    read, dim, index = node.args
    assert isinstance(read, fx.Node) and isinstance(dim, int) and isinstance(index, int)
    dim %= len(shape_of(read))
    return dim, index % shape_of(read)[dim], 1, 1


def part_of(node: fx.Node) -> tuple[int, int, int, int]:
    """Return dimension, start, step and number of elements of a part of ``split_with_sizes``.

    Args:
        node: selects the part.
    """
    source, place = node.args
    assert isinstance(source, fx.Node) and isinstance(place, int)
    _, dim, start = split_part(source, place)
    return dim, start, 1, shape_of(node)[dim]


def spans_of(factors: Sequence[int], start: int, step: int, num: int) -> Spans | None:
    """Return the elements start, start + step, ... of a dimension as a box in its factors.

    Args:
        factors: of the dimension, outermost first.
        start: first element.
        step: distance of elements.
        num: number of elements.

    Returns:
        (start, stop) for each factor; None if the elements are not a box.
    """
    if not factors:
        return [] if (start, num) == (0, 1) else None
    outer, inner = factors[0], math.prod(factors[1:])
    rest = [(0, factor) for factor in factors[1:]]
    if num == 1:
        step = 1
    if step == 1:
        if start % inner == 0 and num % inner == 0:
            return [(start // inner, (start + num) // inner), *rest]
        first, last = start // inner, (start + num - 1) // inner
        within = spans_of(factors[1:], start % inner, 1, num) if first == last else None
        return None if within is None else [(first, first + 1), *within]
    if inner % step or start >= step or num * step != outer * inner:
        return None
    if inner == step:
        within = spans_of(factors[1:], start, 1, 1)
    else:
        within = spans_of(factors[1:], start, step, inner // step)
    return None if within is None else [(0, outer), *within]


def cut_of(
    builder: Builder,
    value: Value,
    dim: int,
    start: int,
    step: int,
    num: int,
    shape: Shape,
    name: str,
) -> Value | None:
    """Select elements start, start + step, ... along a dimension.

    Args:
        builder: of the program.
        value: to select from.
        dim: the dimension.
        start: first element.
        step: distance of elements.
        num: number of elements.
        shape: of the result.
        name: of the op.

    Returns:
        None if the elements are not a box in the factors of the dimension.
    """
    if num == math.prod(value.shape[dim]):
        return value.regrouped(shape)
    spans = spans_of(value.shape[dim], start, step, num)
    if spans is None:
        return None
    span_at = dict(zip(value.places(dim), spans, strict=True))
    # New place of each factor; a factor of which one element is left is dropped.
    into: dict[int, int] = {}
    extents = []
    for place, extent in enumerate(value.extents):
        low, high = span_at.get(place, (0, extent))
        if high - low > 1:
            into[place] = len(into)
            extents.append(high - low)
    if extents != [factor for factors in shape for factor in factors]:
        return None
    value = builder.stored(value, f"{name}.operand")
    ((number, at),) = value.operands
    source = builder.nodes[number]
    box = tuple(
        span_at.get(place, (0, extent)) for place, extent in zip(at, source.shape, strict=True)
    )
    if box != tuple((0, extent) for extent in source.shape):
        number = _selected(builder, number, box, name)
    kept = [place for place in at if place in into]
    if len(kept) < len(at):
        number = _squeezed(builder, number, [place in into for place in at], name)
    operand = Operand(number, tuple(into[place] for place in kept))
    return Value(shape, Element(0), (operand,), value.dtype)


def _selected(builder: Builder, number: int, box: Box, name: str) -> int:
    source = builder.nodes[number]
    return builder.append(
        Select(
            name=name,
            shape=tuple(high - low for low, high in box),
            dtype=source.dtype,
            operands=(number,),
            operand_dtypes=(source.dtype,),
            parts=(Piece(0, box, (0,) * len(box)),),
        )
    )


def _squeezed(builder: Builder, number: int, stays: Sequence[bool], name: str) -> int:
    source = builder.nodes[number]
    ends = iter(range(sum(stays)))
    return builder.append(
        Squeezer(
            name=f"{name}.squeezed",
            shape=tuple(one for one, stay in zip(source.shape, stays, strict=True) if stay),
            dtype=source.dtype,
            operands=(number,),
            operand_dtypes=(source.dtype,),
            dims=tuple(next(ends) if stay else None for stay in stays),
        )
    )


def concatenation(
    builder: Builder, values: Sequence[Value], node: fx.Node, shape: Shape, name: str
) -> Value | None:
    """Concatenate tensors along a dimension.

    Args:
        builder: of the program.
        values: to concatenate.
        node: the call of ``cat``.
        shape: of the result.
        name: of the op.

    Returns:
        None if a tensor is not a box in the factors of the result.
    """
    dim, start = cat_dim(node), 0
    every = Value(shape, Element(0), (), "")
    boxes: list[list[tuple[int, int]]] = []
    for value in values:
        num = math.prod(value.shape[dim])
        spans = spans_of(shape[dim], start, 1, num)
        start += num
        if spans is None:
            return None
        if tuple(b - a for a, b in spans if b - a > 1) != value.shape[dim]:
            return None
        box = [(0, extent) for extent in every.extents]
        for place, span in zip(every.places(dim), spans, strict=True):
            box[place] = span
        boxes.append(box)
    numbers, parts = [], []
    for k, (value, box) in enumerate(zip(values, boxes, strict=True)):
        number = builder.whole(value, f"{name}.operand").operands[0].node
        own = tuple(high - low for low, high in box)
        if own != builder.nodes[number].shape:
            number = _with_dims_of_one(builder, number, own, name)
        numbers.append(number)
        parts.append(Piece(k, tuple((0, extent) for extent in own), tuple(low for low, _ in box)))
    dtype = values[0].dtype
    select = Select(
        name=name,
        shape=every.extents,
        dtype=dtype,
        operands=tuple(numbers),
        operand_dtypes=(dtype,) * len(numbers),
        parts=tuple(parts),
    )
    return builder.tensor(select, shape)


def _with_dims_of_one(builder: Builder, number: int, shape: tuple[int, ...], name: str) -> int:
    source: Any = builder.nodes[number]
    larger = [dim for dim, extent in enumerate(shape) if extent > 1]
    return builder.append(
        Squeezer(
            name=f"{name}.unsqueezed",
            shape=shape,
            dtype=source.dtype,
            operands=(number,),
            operand_dtypes=(source.dtype,),
            dims=tuple(larger),
        )
    )
