"""Normalisations, with the statistics that their gradients read."""

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from doppler.extensions.modules.elementwise import Calculator
from doppler.extensions.modules.reductions import mean_of, size_of
from doppler.extensions.modules.simplifying import wide
from doppler.extensions.modules.values import Value

if TYPE_CHECKING:
    from doppler.extensions.modules.conversion import Conversion

aten = torch.ops.aten


def layer_norm(c: "Conversion", node: fx.Node) -> Value:
    """Convert a result of ``native_layer_norm``.

    Args:
        c: the conversion.
        node: selects the result: the normed tensor, the mean, or 1 / standard deviation.
    """
    source: Any = node.args[0]
    data, normalized, weight, bias, eps = source.args
    name, dtype = c.name(node), c.dtype(node)
    rank = len(c.shape(data))
    dims = list(range(rank - len(normalized), rank))
    mean, _, scale, centred = _statistics(c, source, data, dims, eps, name)
    if node.args[1] != 0:
        return (mean if node.args[1] == 1 else scale).regrouped(c.shape(node)).cast(dtype)
    calculator = Calculator(centred.dtype, centred.shape)
    result = calculator.mul(centred, scale)
    result = result if weight is None else calculator.mul(result, c.value(weight))
    result = result if bias is None else calculator.add(result, c.value(bias))
    return result.cast(dtype)


def _statistics(
    c: "Conversion", source: fx.Node, data: fx.Node, dims: list[int], eps: float, name: str
) -> tuple[Value, ...]:
    """Compute mean, variance, 1 / standard deviation, and the data minus its mean.

    All results of an op share these values.
    """
    if source not in c.statistics:
        value = c.builder.stored(c.value(data), f"{name}.operand")
        value = value.cast(wide(value.dtype))
        calculator = Calculator(value.dtype, value.shape)
        mean = mean_of(c, value, dims, f"{name}.mean")
        centred = c.builder.stored(calculator.sub(value, mean), f"{name}.centred")
        variance = mean_of(c, calculator.square(centred), dims, f"{name}.variance")
        narrow = Calculator(value.dtype, variance.shape)
        scale = narrow.rsqrt(narrow.add(variance, eps))
        c.statistics[source] = mean, variance, scale, centred
    return c.statistics[source]


def batch_norm(c: "Conversion", node: fx.Node) -> Value | None:
    """Convert a result of a batch norm; in training, also of its statistics.

    Args:
        c: the conversion.
        node: selects the result: the normed tensor, the statistics of the batch (1, 2) or the
            new running statistics (3, 4).

    Returns:
        None if the op has to be a call.
    """
    source, place = node.args
    assert isinstance(source, fx.Node)
    if source.target is aten._native_batch_norm_legit_no_training.default:
        data, weight, bias, mean, variance, _, eps = source.args
        return _normed(c, node, c.value(data), weight, bias, mean, variance, eps)  # type: ignore[arg-type]
    data, weight, bias, mean, variance, training, momentum, eps = source.args
    assert isinstance(data, fx.Node) and isinstance(momentum, float) and isinstance(eps, float)
    if not training:
        return None
    name, value = c.name(node), c.value(data)
    dims = [dim for dim in range(len(value.shape)) if dim != 1]
    own_mean, own_variance, scale, centred = _statistics(c, source, data, dims, eps, name)
    if place == 0:
        calculator = Calculator(centred.dtype, centred.shape)
        return _scaled(c, calculator.mul(centred, scale), weight, bias).cast(c.dtype(node))
    shape, dtype = c.shape(node), c.dtype(node)
    narrow = Calculator(own_mean.dtype, own_mean.shape)
    if place == 1:
        return own_mean.regrouped(shape).cast(dtype)
    if place == 2:
        return scale.regrouped(shape).cast(dtype)
    if place == 3:
        before, new = c.value(mean), own_mean  # type: ignore[arg-type]
    else:
        num = size_of(value, dims)
        before, new = c.value(variance), narrow.mul(num / max(num - 1, 1), own_variance)  # type: ignore[arg-type]
    running = Calculator(wide(dtype), shape)
    moved = running.mul(momentum, new.regrouped(shape))
    return running.add(running.mul(1 - momentum, before), moved).cast(dtype)


def _normed(
    c: "Conversion",
    node: fx.Node,
    value: Value,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    eps: float,
) -> Value:
    """Normalise by the running statistics of the training."""
    dtype = c.dtype(node)
    calculator = Calculator(wide(dtype), value.shape)
    scale = calculator.rsqrt(calculator.add(_channels(c, variance, value), eps))
    result = calculator.mul(calculator.sub(value, _channels(c, mean, value)), scale)
    return _scaled(c, result, weight, bias).cast(dtype)


def _scaled(c: "Conversion", value: Value, weight: Any, bias: Any) -> Value:
    calculator = Calculator(value.dtype, value.shape)
    value = value if weight is None else calculator.mul(value, _channels(c, weight, value))
    return value if bias is None else calculator.add(value, _channels(c, bias, value))


def _channels(c: "Conversion", one: fx.Node, like: Value) -> Value:
    own = c.value(one)
    return own.regrouped((*own.shape, *(() for _ in like.shape[2:])))
