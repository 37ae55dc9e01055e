"""Ties: which dimensions of an op's operands and of its result have the same elements."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import getitem
from typing import Any

import torch
from torch import fx

from doppler.extensions.modules.calls import shared_dims
from doppler.extensions.modules.drawing import OF_SHAPE
from doppler.extensions.modules.factors import Dim, Reshape, Same, Slice, Tie
from doppler.extensions.modules.nodes import tensors_of

aten = torch.ops.aten

RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
COPIES = (
    *(aten.clone.default, aten._to_copy.default, aten.alias.default, aten.detach.default),
    *(aten.lift_fresh_copy.default, aten.contiguous.default),
)
BATCH_NORMS = (
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit_functional.default,
)
SOFTMAXES = (aten._softmax.default, aten._log_softmax.default)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's result, or of its first result.

    Args:
        node: of the exported graph.
    """
    return tuple(tensors_of(node)[0].shape)


def is_tensor(node: Any) -> bool:
    """Whether a node of the exported graph is a single tensor.

    Args:
        node: anything.
    """
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def ties_of(node: fx.Node) -> Iterator[Tie]:
    """Yield the ties between the dimensions of an op's tensors.

    Args:
        node: the op.
    """
    rule = _RULES.get(node.target)
    if rule is not None:
        yield from rule(node)
        return
    for read, dims in shared_dims(node).items():
        for dim, into in dims.items():
            yield from _same(read, dim, node, into)


def _same(one: Any, dim: int, other: fx.Node, into: int) -> Iterator[Same]:
    if shape_of(one)[dim] > 1 and shape_of(one)[dim] == shape_of(other)[into]:
        yield Same((one.name, dim), (other.name, into))


def _aligned(node: fx.Node) -> Iterator[Same]:
    """Yield ties of tensors that are broadcast to the result, aligned at the last dimension."""
    rank = len(shape_of(node))
    for read in node.all_input_nodes:
        if is_tensor(read):
            offset = rank - len(shape_of(read))
            for dim in range(max(0, -offset), len(shape_of(read))):
                yield from _same(read, dim, node, dim + offset)


def _reshape(node: fx.Node) -> Iterator[Tie]:
    read: Any = node.args[0]
    before, after = _larger_dims(read), _larger_dims(node)
    if [shape_of(read)[dim] for _, dim in before] == [shape_of(node)[dim] for _, dim in after]:
        yield from (Same(one, other) for one, other in zip(before, after, strict=True))
    else:
        yield Reshape(node.name, tuple(before), tuple(after))


def is_reshape(node: fx.Node) -> bool:
    """Whether ``as_strided`` returns all elements of a dense tensor in the order of its memory.

    Args:
        node: the call of ``as_strided``.
    """
    read, value = node.args[0], node.meta["val"]
    assert isinstance(read, fx.Node)
    given = read.meta["val"]
    both_dense = given.is_contiguous() and value.is_contiguous()
    return both_dense and given.numel() == value.numel() and value.storage_offset() == 0


def _as_strided(node: fx.Node) -> Iterator[Tie]:
    if is_reshape(node):
        yield from _reshape(node)


def _larger_dims(node: fx.Node) -> list[Dim]:
    return [(node.name, dim) for dim, size in enumerate(shape_of(node)) if size > 1]


def _permute(node: fx.Node) -> Iterator[Same]:
    read, dims = node.args[0], node.args[1]
    for into, dim in enumerate(dims):  # type: ignore[arg-type]
        yield from _same(read, dim % len(shape_of(node)), node, into)


def _select(node: fx.Node) -> Iterator[Same]:
    read: Any = node.args[0]
    dropped: Any = node.args[1]
    rank = len(shape_of(read))
    kept = [dim for dim in range(rank) if dim != dropped % rank]
    for into, dim in enumerate(kept):
        yield from _same(read, dim, node, into)


def slice_range(node: fx.Node) -> tuple[int, int, int, int]:
    """Return dimension, start, step and number of elements of a ``slice``.

    Args:
        node: the call of ``slice``.
    """
    _, dim, start, _, step = (*node.args, *(None,) * 5)[:5]
    read: Any = node.args[0]
    dim = int(dim or 0) % len(shape_of(read))  # type: ignore[arg-type]
    size, start = shape_of(read)[dim], int(start or 0)  # type: ignore[arg-type]
    start = max(0, start + size) if start < 0 else start
    return dim, start, int(step or 1), shape_of(node)[dim]  # type: ignore[arg-type]


def _slice(node: fx.Node) -> Iterator[Tie]:
    read: Any = node.args[0]
    dim, start, step, num = slice_range(node)
    yield from _others(read, node, dim)
    if num > 1:
        yield Slice((read.name, dim), (node.name, dim), start, step)


def _others(read: Any, node: fx.Node, but: int) -> Iterator[Same]:
    for one in range(len(shape_of(node))):
        if one != but:
            yield from _same(read, one, node, one)


def _cat(node: fx.Node) -> Iterator[Tie]:
    parts: Any = node.args[0]
    dim = cat_dim(node)
    start = 0
    for part in parts:
        yield from _others(part, node, dim)
        size = shape_of(part)[dim]
        if size > 1:
            yield Slice((node.name, dim), (part.name, dim), start, 1)
        start += size


def cat_dim(node: fx.Node) -> int:
    """Return the dimension along which tensors are concatenated.

    Args:
        node: the call of ``cat``.
    """
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return dim % len(shape_of(node))


def reduced_dims(node: fx.Node) -> list[int]:
    """Return the dimensions over which an op aggregates.

    Args:
        node: the op.
    """
    read: Any = node.args[0]
    rank = len(shape_of(read))
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if isinstance(dims, int):
        dims = [dims]
    return sorted(dim % rank for dim in dims) if dims else list(range(rank))


def _reduction(node: fx.Node) -> Iterator[Same]:
    read: Any = node.args[0]
    rank, summed = len(shape_of(read)), reduced_dims(node)
    kept = [dim for dim in range(rank) if dim not in summed]
    keeps = len(shape_of(node)) == rank
    for into, dim in enumerate(kept):
        yield from _same(read, dim, node, dim if keeps else into)


def _mm(node: fx.Node) -> Iterator[Same]:
    yield from _product(node.args[0], node.args[1], node)


def _addmm(node: fx.Node) -> Iterator[Same]:
    yield from _product(node.args[1], node.args[2], node)
    bias: Any = node.args[0]
    offset = len(shape_of(node)) - len(shape_of(bias))
    for dim in range(len(shape_of(bias))):
        yield from _same(bias, dim, node, dim + offset)


def _product(one: Any, other: Any, node: fx.Node) -> Iterator[Same]:
    rank = len(shape_of(one))
    for dim in range(rank - 2):
        yield from _same(one, dim, node, dim)
        yield from _same(other, dim, node, dim)
    yield from _same(one, rank - 2, node, rank - 2)
    yield from _same(other, rank - 1, node, rank - 1)
    yield from _same(one, rank - 1, other, rank - 2)


def _batch_norm(node: fx.Node) -> Iterator[Same]:
    """Yield ties of the data, and of the tensors with one element per channel."""
    data, *others = node.args
    for dim in range(len(shape_of(node))):
        yield from _same(data, dim, node, dim)
    for one in others[:4]:
        if is_tensor(one):
            yield from _same(one, 0, node, 1)


def _getitem(node: fx.Node) -> Iterator[Tie]:
    source: Any = node.args[0]
    place: Any = node.args[1]
    if source.target is aten.split_with_sizes.default:
        read, dim, start = split_part(source, place)
        yield from _others(read, node, dim)
        if shape_of(node)[dim] > 1:
            yield Slice((read.name, dim), (node.name, dim), start, 1)
    elif source.target in BATCH_NORMS and place > 0:  # one element per channel
        yield from _same(source, 1, node, 0)
    elif source.target is aten.native_layer_norm.default and place > 0:
        for dim in range(len(shape_of(node))):
            yield from _same(source, dim, node, dim)
    elif shape_of(node) == shape_of(source):
        for dim in range(len(shape_of(node))):
            yield from _same(source, dim, node, dim)


def split_part(source: fx.Node, place: int) -> tuple[Any, int, int]:
    """Return where a part of ``split_with_sizes`` comes from.

    Args:
        source: the call of ``split_with_sizes``.
        place: number of the part.

    Returns:
        The tensor that is split, the dimension, and the first element along it.
    """
    read: Any = source.args[0]
    sizes: Any = source.args[1]
    dim: Any = source.args[2] if len(source.args) > 2 else 0
    return read, dim % len(shape_of(read)), sum(sizes[:place])


_REDUCTIONS = (
    *(aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.amax.default),
    *(aten.amin.default, aten.any.dim, aten.any.dims, aten.any.default, aten.var.correction),
    *(aten.prod.dim_int, aten.prod.default, aten.max.dim, aten.min.dim),
)

_RULES: dict[Any, Callable[[fx.Node], Iterator[Tie]]] = {
    **dict.fromkeys((*RESHAPES, aten.unsqueeze.default, aten.squeeze.dims), _reshape),
    aten.squeeze.dim: _reshape,
    aten.as_strided.default: _as_strided,
    aten.permute.default: _permute,
    aten.expand.default: _aligned,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.cat.default: _cat,
    aten.split_with_sizes.default: lambda node: iter(()),  # ties belong to its parts
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(SOFTMAXES, _aligned),
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    **dict.fromkeys(COPIES, _aligned),
    aten.native_layer_norm.default: _aligned,
    aten.native_dropout.default: _aligned,
    **dict.fromkeys(OF_SHAPE, _aligned),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
}


def all_ties(nodes: Sequence[fx.Node]) -> list[Tie]:
    """Return the ties of all ops of a graph.

    Args:
        nodes: of the graph.
    """
    ties: list[Tie] = []
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is getitem:
            ties += _getitem(node)
        elif tensors_of(node):
            # An op with an unusual call that its rule does not cover becomes a call without ties.
            with suppress(ArithmeticError, AssertionError, IndexError, TypeError, ValueError):
                ties += list(ties_of(node))
    return ties
