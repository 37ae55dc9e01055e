"""Conversion rules for the torch ops that einsum programs can express."""

import math
from collections.abc import Callable
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from doppler.extensions.modules.drawing import draw_of, is_random, mask_of_dropout
from doppler.extensions.modules.elementwise import Calculator, elementwise
from doppler.extensions.modules.nodes import place_of
from doppler.extensions.modules.norms import batch_norm, layer_norm
from doppler.extensions.modules.reductions import mean_of, reduce
from doppler.extensions.modules.simplifying import wide
from doppler.extensions.modules.ties import (
    BATCH_NORMS,
    COPIES,
    RESHAPES,
    SOFTMAXES,
    is_reshape,
    reduced_dims,
    slice_range,
)
from doppler.extensions.modules.values import Value, constant
from doppler.extensions.modules.views import concatenation, cut_of, index_of, part_of
from doppler.graph.scalar import WHOLE
from doppler.support.errors import InputError

if TYPE_CHECKING:
    from doppler.extensions.modules.conversion import Conversion

aten = torch.ops.aten

CONSTANTS = (
    *(aten.full.default, aten.scalar_tensor.default, aten.zeros.default, aten.ones.default),
)


def convert_op(c: "Conversion", node: fx.Node) -> Value:
    """Convert an op by a rule of this file, as an elementwise op, or as a call.

    Args:
        c: the conversion.
        node: the op.
    """
    target: Any = node.target
    if target is getitem:
        source: Any = node.args[0]
        rule = _FIRST_RESULTS.get(source.target) if node.args[1] == 0 else None
        rule = _RULES_OF_PARTS.get(source.target, rule)
        value = rule(c, node) if rule else None
    elif target in _RULES:
        value = _RULES[target](c, node)
    elif is_random(node) and (draw := draw_of(node)):
        value = c.add_drawn(node, node, c.dtype(node), draw)
    else:
        arguments = [_argument(c, one) for one in node.args]
        is_plain = all(
            isinstance(one, Value | bool | int | float | str | None) for one in arguments
        )
        options = {key: one for key, one in node.kwargs.items() if not isinstance(one, fx.Node)}
        value = None
        if is_plain and len(options) == len(node.kwargs):
            value = elementwise(target, arguments, options, c.dtype(node), c.shape(node))
    return c.call(node) if value is None else value


def _argument(c: "Conversion", one: Any) -> Any:
    return c.value(one) if isinstance(one, fx.Node) else one


def _operand(c: "Conversion", node: fx.Node, k: int = 0) -> Value:
    operand = node.args[k]
    assert isinstance(operand, fx.Node)
    return c.value(operand)


def _constant(c: "Conversion", node: fx.Node) -> Value | None:
    name = str(node.target).split(".")[1]
    if name == "full":
        number = node.args[1]
    else:
        number = node.args[0] if name == "scalar_tensor" else float("ones" in name)
    if not isinstance(number, bool | int | float) or float(number) != number == number:
        return None  # programs have no integers of so many digits
    return constant(number, c.dtype(node), c.shape(node))


def _copy(c: "Conversion", node: fx.Node) -> Value | None:
    value, dtype = _operand(c, node), c.dtype(node)
    if value.dtype == "c64" != dtype:
        return None  # torch's own cast takes the real part
    return value.cast(dtype)


def _reshape(c: "Conversion", node: fx.Node) -> Value | None:
    if node.name in c.factors.refused:
        return None
    return _operand(c, node).regrouped(c.shape(node))


def _as_strided(c: "Conversion", node: fx.Node) -> Value | None:
    """Convert a reshape of dense memory; other views of memory become calls of torch's operator."""
    if is_reshape(node):
        return _reshape(c, node)
    read: Any = node.args[0]
    if not read.meta["val"].is_contiguous():
        raise InputError(
            f"{place_of(node)}: depends on the memory layout of its input; use .contiguous() "
            "before it"
        )
    return None


def _permute(c: "Conversion", node: fx.Node) -> Value:
    dims: Any = node.args[1]
    return _operand(c, node).permuted([dim % len(dims) for dim in dims])


def _expand(c: "Conversion", node: fx.Node) -> Value:
    return _operand(c, node).expanded(c.shape(node))


def _select(c: "Conversion", node: fx.Node) -> Value | None:
    return cut_of(c.builder, _operand(c, node), *index_of(node), c.shape(node), c.name(node))


def _slice(c: "Conversion", node: fx.Node) -> Value | None:
    return cut_of(c.builder, _operand(c, node), *slice_range(node), c.shape(node), c.name(node))


def _part(c: "Conversion", node: fx.Node) -> Value | None:
    source: Any = node.args[0]
    value = c.value(source.args[0])
    return cut_of(c.builder, value, *part_of(node), c.shape(node), c.name(node))


def _cat(c: "Conversion", node: fx.Node) -> Value | None:
    parts: Any = node.args[0]
    values = [c.value(part).cast(c.dtype(node)) for part in parts]
    return concatenation(c.builder, values, node, c.shape(node), c.name(node))


# --- Reductions -----------------------------------------------------------------------------------


def _reduction(aggregation: str) -> Callable[["Conversion", fx.Node], Value | None]:
    def rule(c: "Conversion", node: fx.Node) -> Value | None:
        if c.dtype(node) == "c64" and aggregation != "add":
            return None  # programs only add complex numbers
        value = _operand(c, node).cast(c.dtype(node))
        reduced = reduce(c, value, reduced_dims(node), aggregation, c.name(node))
        return reduced.regrouped(c.shape(node))

    return rule


def _extreme(aggregation: str) -> Callable[["Conversion", fx.Node], Value | None]:
    """Make a rule for the first result of ``max`` and ``min``; the second one is an index."""

    def rule(c: "Conversion", node: fx.Node) -> Value:
        source: Any = node.args[0]
        value = _operand(c, source)
        reduced = reduce(c, value, reduced_dims(source), aggregation, c.name(node))
        return reduced.regrouped(c.shape(node))

    return rule


def _gather(c: "Conversion", node: fx.Node) -> Value | None:
    """Select one element along a dimension, as a sum in which all other elements become 0."""
    data, dim, index = node.args[:3]
    assert isinstance(data, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    value, wanted = c.value(data), c.value(index)
    dim %= len(value.shape)
    others = [own for k, own in enumerate(value.shape) if k != dim]
    if wanted.shape[dim] or [own for k, own in enumerate(wanted.shape) if k != dim] != others:
        return None
    if len(value.shape[dim]) != 1 or value.dtype == "c64":
        return None
    (extent,) = value.shape[dim]
    numbers = c.add_folded(f"{c.name(node)}.numbers", extent)
    numbers = numbers.regrouped((*numbers.shape, *(() for _ in value.shape[dim + 1 :])))
    is_wanted = Calculator("i64", value.shape).equal(numbers, wanted)
    kept = Calculator(value.dtype, value.shape).choose(is_wanted, value, 0.0)
    return reduce(c, kept, [dim], "add", c.name(node)).regrouped(c.shape(node))


def _mean(c: "Conversion", node: fx.Node) -> Value:
    dtype = c.dtype(node)
    value = _operand(c, node).cast(wide(dtype))
    mean = mean_of(c, value, reduced_dims(node), c.name(node))
    return mean.regrouped(c.shape(node)).cast(dtype)


def _variance(c: "Conversion", node: fx.Node) -> Value | None:
    correction: Any = node.kwargs.get("correction")
    correction = 1 if correction is None else correction
    dims, value, name = reduced_dims(node), _operand(c, node), c.name(node)
    num = math.prod(factor for dim in dims for factor in value.shape[dim])
    if value.dtype == "c64" or num <= correction:  # torch divides by 0, not by a negative number
        return None
    value = c.builder.stored(value, f"{name}.operand")
    value = value.cast(wide(value.dtype))
    calculator = Calculator(value.dtype, value.shape)
    centred = calculator.sub(value, mean_of(c, value, dims, f"{name}.mean"))
    total = reduce(c, calculator.square(centred), dims, "add", name)
    scaled = Calculator(value.dtype, total.shape).mul(1 / (num - correction), total)
    return scaled.regrouped(c.shape(node)).cast(c.dtype(node))


def _softmax(c: "Conversion", node: fx.Node) -> Value:
    dim: Any = node.args[1]
    name, dtype = c.name(node), c.dtype(node)
    value = c.builder.stored(_operand(c, node), f"{name}.operand")
    value = value.cast(wide(value.dtype))
    dims = [dim % len(value.shape)]
    calculator = Calculator(value.dtype, value.shape)
    largest = reduce(c, value, dims, "max", f"{name}.max")
    if node.target is aten._log_softmax.default:
        shifted = calculator.sub(value, largest)
        total = reduce(c, calculator.exp(shifted), dims, "add", f"{name}.sum")
        return calculator.sub(shifted, calculator.log(total)).cast(dtype)
    powers = c.builder.stored(calculator.exp(calculator.sub(value, largest)), f"{name}.exp")
    total = reduce(c, powers, dims, "add", f"{name}.sum")
    return calculator.div(powers, total).cast(dtype)


def _dropout(c: "Conversion", node: fx.Node) -> Value:
    """Convert dropout: the mask of kept elements is an input that is drawn for every run."""
    source, place = node.args
    assert isinstance(source, fx.Node)
    data, probability, train = source.args
    kept: Any = 1 - probability if train is not False else 1  # type: ignore[operator]
    calculator = Calculator(wide(c.dtype(node)), c.shape(node))
    if kept == 1:
        return c.value(data) if place == 0 else constant(1, "bool", c.shape(node))  # type: ignore[arg-type]
    mask = c.add_drawn(source, node, "bool", mask_of_dropout(source))
    if place == 1:
        return mask
    scaled = calculator.mul(c.value(data), 1 / kept if kept else 0.0)  # type: ignore[arg-type]
    return calculator.mul(scaled, mask).cast(c.dtype(node))


# --- Products -------------------------------------------------------------------------------------


def _product(c: "Conversion", node: fx.Node, first: int = 0) -> Value | None:
    dtype = c.dtype(node)
    if dtype in (*WHOLE, "bool"):
        return None
    one, other = _operand(c, node, first), _operand(c, node, first + 1)
    dims = len(one.shape) - 2
    return c.builder.contracted(one, other, name=c.name(node), dtype=dtype, dims=dims)


def _addmm(c: "Conversion", node: fx.Node) -> Value | None:
    product = _product(c, node, first=1)
    if product is None:
        return None
    dtype = c.dtype(node)
    calculator = Calculator(wide(dtype), c.shape(node))
    bias, alpha, beta = _operand(c, node), node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if alpha != 1:
        product = calculator.mul(alpha, product)
    if beta != 0:  # with 0 torch ignores the bias, also where it is infinite or NaN
        product = calculator.add(product, bias if beta == 1 else calculator.mul(beta, bias))
    return product.cast(dtype)


_RULES: dict[Any, Callable[["Conversion", fx.Node], Value | None]] = {
    **dict.fromkeys(CONSTANTS, _constant),
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys((*RESHAPES, aten.unsqueeze.default, aten.squeeze.dims), _reshape),
    aten.squeeze.dim: _reshape,
    aten.as_strided.default: _as_strided,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.cat.default: _cat,
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _reduction("add")),
    **dict.fromkeys((aten.mean.dim, aten.mean.default), _mean),
    aten.amax.default: _reduction("max"),
    aten.amin.default: _reduction("min"),
    **dict.fromkeys((aten.any.dim, aten.any.dims, aten.any.default), _reduction("max")),
    aten.var.correction: _variance,
    **dict.fromkeys((aten.prod.dim_int, aten.prod.default), _reduction("mul")),
    aten.gather.default: _gather,
    **dict.fromkeys(SOFTMAXES, _softmax),
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _product),
    aten.addmm.default: _addmm,
}
_RULES_OF_PARTS: dict[Any, Callable[["Conversion", fx.Node], Value | None]] = {
    aten.split_with_sizes.default: _part,
    aten.native_dropout.default: _dropout,
    aten.native_layer_norm.default: layer_norm,
    **dict.fromkeys(BATCH_NORMS, batch_norm),
}
_FIRST_RESULTS: dict[Any, Callable[["Conversion", fx.Node], Value | None]] = {
    aten.max.dim: _extreme("max"),
    aten.min.dim: _extreme("min"),
}
