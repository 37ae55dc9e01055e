"""Calls: ops that no einsum expresses, computed by torch's own operator.

A call is split only along dimensions whose elements the operator treats independently, such as the
samples of a batch or the output channels of a convolution. Along all other dimensions every block
reads the whole operand.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from doppler.einsum.program import KernelOperand, Node, Piece
from doppler.extensions.modules.nodes import argument, tensors_of
from doppler.graph.kernel import Box

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Call(Node):
    """One call of a torch operator.

    Attributes:
        operator: name of the operator, such as ``aten.convolution.default``.
        arguments: as JSON (see `render_call`).
        operand_shapes: shape of each operand.
        operand_dims: for each dimension of each operand, the dimension of the result that it runs
            along; None if every block reads all of it.
        total_flops: floating-point operations of all blocks together.
    """

    operator: str
    arguments: str
    operand_shapes: tuple[tuple[int, ...], ...]
    operand_dims: tuple[tuple[int | None, ...], ...]
    total_flops: int

    @property
    def kind(self) -> str:
        return self.operator.split(".")[1].strip("_")

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        operands = []
        for k, (shape, dims, dtype) in enumerate(
            zip(self.operand_shapes, self.operand_dims, self.operand_dtypes, strict=True)
        ):
            read = tuple(
                (0, extent) if dim is None else box[dim]
                for extent, dim in zip(shape, dims, strict=True)
            )
            extents = tuple(stop - start for start, stop in read)
            operands.append(KernelOperand(extents, dtype, (Piece(k, read, (0,) * len(read)),)))
        return tuple(operands)

    def expression(self, box: Box) -> str:
        return f"torch:{self.operator}:{self.arguments}"

    def flops(self, box: Box) -> int:
        block = math.prod(stop - start for start, stop in box)
        return self.total_flops * block // math.prod(self.shape)

    def split_fault(self, dim: int, parts: int) -> str | None:
        if parts > 1 and not any(dim in dims for dims in self.operand_dims):
            return f"dimension {dim} of {self.operator!r} cannot be split"
        return super().split_fault(dim, parts)


# For each tensor that is read: the dimensions of which a block of the result reads only a part, and
# the dimension of the result that each of them runs along.
Shared: TypeAlias = Mapping[fx.Node, Mapping[int, int]]


def shared_dims(node: fx.Node) -> Shared:
    """Return the dimensions along which an operator may be split; empty if no rule knows it.

    Args:
        node: the call of the operator.
    """
    rule = _RULES.get(node.target)
    if rule is not None:
        try:
            return rule(node)
        except (ArithmeticError, AssertionError, IndexError, TypeError, ValueError):
            return {}  # an unusual call that the rule does not cover
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return _pointwise(node)
    return {}


def rank_of(node: fx.Node) -> int:
    """Return the number of dimensions of a node's result, or of its first result.

    Args:
        node: of the exported graph.
    """
    return tensors_of(node)[0].dim()


def _pointwise(node: fx.Node) -> Shared:
    rank = rank_of(node)
    return {
        read: {
            dim: dim + rank - rank_of(read)
            for dim in range(rank_of(read))
            if read.meta["val"].shape[dim] > 1
        }
        for read in node.all_input_nodes
    }


def _leading(num: int) -> Callable[[fx.Node], Shared]:
    """Make a rule: the op works on the last dimensions of its first operand."""

    def rule(node: fx.Node) -> Shared:
        operand: Any = node.args[0]
        return {operand: {dim: dim for dim in range(rank_of(operand) - num)}}

    return rule


def _leading_of_all(num: int) -> Callable[[fx.Node], Shared]:
    """Make a rule: the op works on the last dimensions of all its operands."""

    def rule(node: fx.Node) -> Shared:
        reads = node.all_input_nodes
        return {read: {dim: dim for dim in range(rank_of(read) - num)} for read in reads}

    return rule


def _convolution(node: fx.Node) -> Shared:
    data: Any = node.args[0]
    weight, bias, *_, transposed, _, groups = node.args[1:]
    shared: dict[Any, dict[int, int]] = {data: {0: 0}}
    if groups == 1:
        shared[weight] = {1: 1} if transposed else {0: 1}
        if bias is not None:
            shared[bias] = {0: 1}
    return shared


def _convolution_backward(node: fx.Node) -> Shared:
    """The gradient that the mask selects: by the input, or by the weight."""
    gradient, data, weight, *_, transposed, _, groups, mask = node.args
    tensors: Any = gradient, data, weight
    gradient, data, weight = tensors
    out, into = (1, 0) if transposed else (0, 1)  # dimensions of the weight
    shared: dict[Any, dict[int, int]]
    if isinstance(mask, list) and mask[0]:
        shared = {gradient: {0: 0}, data: {0: 0}}
        if groups == 1:
            shared[data][1] = 1
            shared[weight] = {into: 1}
    else:
        shared = {gradient: {}, data: {}, weight: {}}
        if groups == 1:
            shared = {gradient: {1: out}, data: {1: into}, weight: {0: 0, 1: 1}}
    return shared


def _embedding(node: fx.Node) -> Shared:
    table: Any = node.args[0]
    index: Any = node.args[1]
    rank = rank_of(index)
    return {table: {1: rank}, index: {dim: dim for dim in range(rank)}}


def _but(*names: str) -> Callable[[fx.Node], Shared]:
    """Make a rule: the op works along some dimensions, independently for each of the others.

    Args:
        names: arguments of the operator that name the dimensions it works along.
    """

    def rule(node: fx.Node) -> Shared:
        rank = rank_of(node.all_input_nodes[0])
        dims = [argument(node, name) for name in names]
        if rank_of(node) != rank or None in dims:
            return {}
        used = {one % rank for dim in dims for one in (dim if isinstance(dim, list) else [dim])}
        others = {one: one for one in range(rank) if one not in used}
        return dict.fromkeys(node.all_input_nodes, others)

    return rule


def _pad(node: fx.Node) -> Shared:
    data, pad = node.args[:2]
    assert isinstance(data, fx.Node) and isinstance(pad, list)
    rank = rank_of(data)
    padded = {rank - 1 - k // 2 for k, width in enumerate(pad) if width}
    return {data: {one: one for one in range(rank) if one not in padded}}


def _index_select(node: fx.Node) -> Shared:
    data, dim, index = node.args
    assert isinstance(data, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    rank = rank_of(data)
    others = {one: one for one in range(rank) if one != dim % rank}
    return {data: others, index: {0: dim % rank} if rank_of(index) else {}}


def _gather(node: fx.Node) -> Shared:
    data, dim, index = node.args[:3]
    assert isinstance(data, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    rank = rank_of(index)
    shapes = data.meta["val"].shape, index.meta["val"].shape
    # The index may have fewer rows than the data; a block of them would read the first rows.
    alike = [one for one in range(rank) if one != dim % rank and shapes[0][one] == shapes[1][one]]
    return {data: {one: one for one in alike}, index: {one: one for one in (*alike, dim % rank)}}


def _index(node: fx.Node) -> Shared:
    """Rule for ``data[:, index]`` with a single index tensor."""
    data, places = node.args
    assert isinstance(data, fx.Node) and isinstance(places, list | tuple)
    given = [(place, one) for place, one in enumerate(places) if isinstance(one, fx.Node)]
    if len(given) != 1:
        return {}
    ((place, index),) = given
    more = rank_of(index) - 1
    before = {one: one for one in range(place)}
    behind = {one: one + more for one in range(place + 1, rank_of(data))}
    return {data: before | behind, index: {one: place + one for one in range(rank_of(index))}}


_RULES: dict[Any, Callable[[fx.Node], Shared]] = {
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    **dict.fromkeys(
        [
            *(aten.cumsum.default, aten.sort.default, aten.sort.stable, aten.topk.default),
            *(aten.argmax.default, aten.argmin.default, aten.cumprod.default),
            *(aten.logcumsumexp.default, aten.cummax.default, aten.cummin.default),
        ],
        _but("dim"),
    ),
    aten.flip.default: _but("dims"),
    aten.roll.default: _but("dims"),
    aten.slice.Tensor: _but("dim"),
    aten.slice_scatter.default: _but("dim"),
    aten.constant_pad_nd.default: _pad,
    aten.index_select.default: _index_select,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.embedding.default: _embedding,
    aten.view_as_complex.default: _leading(1),
    aten.view_as_real.default: _leading(0),
    **dict.fromkeys(
        [
            *(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default),
            *(aten._adaptive_avg_pool2d.default, aten.avg_pool1d.default),
            *(aten.upsample_bilinear2d.vec, aten.upsample_nearest2d.vec),
        ],
        _leading(2),
    ),
    **dict.fromkeys(
        [
            *(aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default),
            aten._adaptive_avg_pool2d_backward.default,
        ],
        _leading_of_all(2),
    ),
}


def as_json(argument: Any, number_of: Mapping[fx.Node, int], ranks: Mapping[fx.Node, Any]) -> Any:
    """Convert an argument of a call to JSON.

    Args:
        argument: to convert; a tensor becomes ``{"x": operand, "factors": [..]}``.
        number_of: operand number of each tensor.
        ranks: for each tensor, the number of factors of each of its dimensions.

    Raises:
        TypeError: the argument has no JSON form.
    """
    if isinstance(argument, fx.Node):
        return {"x": number_of[argument], "factors": ranks[argument]}
    if isinstance(argument, list | tuple):
        return [as_json(one, number_of, ranks) for one in argument]
    if isinstance(argument, complex):
        return {"real": argument.real, "imag": argument.imag}
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument).removeprefix("torch.")}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise TypeError(f"an argument of type {type(argument).__name__}")


def render_call(node: fx.Node, factors: Mapping[fx.Node, list[int]], output: int | None) -> str:
    """Return the arguments of a call as JSON text.

    Args:
        node: the call.
        factors: for each tensor that is read, in the order of the operands, into how many
            dimensions of the operand each of its dimensions is divided.
        output: number of the result that is meant; None if there is only one.

    Raises:
        TypeError: an argument has no JSON form.
    """
    number_of = {read: k for k, read in enumerate(factors)}
    placed = ("device", "layout", "pin_memory", "memory_format")
    call = {
        "args": as_json(node.args, number_of, factors),
        "kwargs": {
            key: as_json(value, number_of, factors)
            for key, value in node.kwargs.items()
            if key not in placed
        },
    }
    return json.dumps(call if output is None else call | {"output": output})
