"""Expresses elementwise ops of torch as scalar functions (graph.scalar)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from doppler.extensions.modules.simplifying import wide
from doppler.extensions.modules.values import Shape, Value, apply, constant
from doppler.graph.scalar import WHOLE

aten = torch.ops.aten


class Calculator:
    """Applies scalar functions in one dtype and one shape; arguments are values or numbers.

    Args:
        dtype: of arguments and results.
        shape: to which arguments are broadcast.
    """

    def __init__(self, dtype: str, shape: Shape) -> None:
        self.dtype, self.shape = dtype, shape

    def __getattr__(self, function: str) -> Callable[..., Value]:
        """Return a function of `graph.scalar.FUNCTIONS`, as in ``calculator.add(x, 1.0)``."""

        def call(*arguments: Value | float) -> Value:
            values = [
                one.cast(self.dtype) if isinstance(one, Value) else constant(one, self.dtype)
                for one in arguments
            ]
            return apply(function, values, self.dtype, self.shape)

        return call

    def truth(self, value: Value) -> Value:
        """Convert a value to bool.

        Args:
            value: to convert.
        """
        return value.cast("bool")

    def choose(self, condition: Value, one: Value | float, other: Value | float) -> Value:
        """Return ``one`` where the condition holds, and ``other`` elsewhere.

        Args:
            condition: of bool.
            one: value or number.
            other: value or number.
        """
        values = [
            value.cast(self.dtype) if isinstance(value, Value) else constant(value, self.dtype)
            for value in (one, other)
        ]
        return apply("where", [condition, *values], self.dtype, self.shape)


# Called with a calculator in the dtype of the computation, and the op's arguments in order.
Rule: TypeAlias = Callable[..., Value]


def _scaled(c: Calculator, other: Any, alpha: float) -> Any:
    return other if alpha == 1 else c.mul(alpha, other)


def _add(c: Calculator, a: Any, b: Any, alpha: float = 1) -> Value:
    return c.add(a, _scaled(c, b, alpha))


def _sub(c: Calculator, a: Any, b: Any, alpha: float = 1) -> Value:
    return c.sub(a, _scaled(c, b, alpha))


def _clamp(c: Calculator, a: Value, low: Any = None, high: Any = None) -> Value:
    if low is not None:
        a = c.maximum(a, low)
    return a if high is None else c.minimum(a, high)


def _power(c: Calculator, a: Value, exponent: float) -> Value:
    """Compute a power like torch's kernel, whose roots of -0 and -inf differ from ``pow``."""
    if exponent in (0.5, -0.5):
        return c.sqrt(a) if exponent > 0 else c.rsqrt(a)
    return c.div(1.0, a) if exponent == -1 else c.pow(a, exponent)


def _gelu(c: Calculator, a: Value, approximate: str = "none") -> Value:
    half = c.mul(0.5, a)
    if approximate == "none":
        return c.mul(half, c.add(1.0, c.erf(c.mul(math.sqrt(0.5), a))))
    cubic = c.add(a, c.mul(0.044715, c.mul(a, c.square(a))))
    return c.mul(half, c.add(1.0, c.tanh(c.mul(math.sqrt(2 / math.pi), cubic))))


def _elu(c: Calculator, a: Value, alpha: float = 1, scale: float = 1, inner: float = 1) -> Value:
    # exp(x) - 1 = tanh(x / 2) (exp(x) + 1), of which no digits cancel near 0.
    negative = c.mul(inner, c.minimum(a, 0.0))
    low = c.mul(alpha, c.mul(c.tanh(c.mul(0.5, negative)), c.add(c.exp(negative), 1.0)))
    return c.mul(scale, c.add(c.relu(a), low))


def _leaky_relu(c: Calculator, a: Value, slope: float = 0.01) -> Value:
    return c.add(c.relu(a), c.mul(slope, c.minimum(a, 0.0)))


ARITHMETIC: dict[Any, Rule] = {
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _sub,
    aten.sub.Scalar: _sub,
    aten.rsub.Scalar: lambda c, a, b, alpha=1: _sub(c, b, a, alpha),
    aten.mul.Tensor: lambda c, a, b: c.mul(a, b),
    aten.mul.Scalar: lambda c, a, b: c.mul(a, b),
    aten.div.Tensor: lambda c, a, b: c.div(a, b),
    aten.div.Scalar: lambda c, a, b: c.div(a, b),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: lambda c, a, b: c.pow(a, b),
    aten.pow.Scalar: lambda c, a, b: c.pow(a, b),
    aten.maximum.default: lambda c, a, b: c.maximum(a, b),
    aten.minimum.default: lambda c, a, b: c.minimum(a, b),
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.hardtanh.default: lambda c, a, low=-1.0, high=1.0: _clamp(c, a, low, high),
    aten.reciprocal.default: lambda c, a: c.div(1.0, a),
    aten.silu.default: lambda c, a: c.silu(a),
    aten.gelu.default: lambda c, a, approximate="none": _gelu(c, a, approximate),
    aten.elu.default: _elu,
    aten.leaky_relu.default: _leaky_relu,
    **{
        getattr(aten, name).default: (lambda c, a, name=name: getattr(c, name)(a))
        for name in (
            *("neg", "exp", "log", "sqrt", "rsqrt", "relu", "abs", "sigmoid", "tanh", "sign"),
            *("sin", "cos", "erf", "square"),
        )
    },
}

# Operators whose arguments have one dtype and whose result is bool.
COMPARISONS: dict[Any, Rule] = {
    aten.eq: lambda c, a, b: c.equal(a, b),
    aten.ne: lambda c, a, b: c.sub(1.0, c.equal(a, b)),
    aten.lt: lambda c, a, b: c.less(a, b),
    aten.gt: lambda c, a, b: c.less(b, a),
    aten.le: lambda c, a, b: c.maximum(c.less(a, b), c.equal(a, b)),
    aten.ge: lambda c, a, b: c.maximum(c.less(b, a), c.equal(a, b)),
}

# Operators on bool, computed in f32 with true as 1.
LOGIC: dict[Any, Rule] = {
    aten.logical_not.default: lambda c, a: c.sub(1.0, a),
    aten.bitwise_not.default: lambda c, a: c.sub(1.0, a),
    **dict.fromkeys(
        [aten.logical_and.default, aten.bitwise_and.Tensor], lambda c, a, b: c.mul(a, b)
    ),
    **dict.fromkeys(
        [aten.logical_or.default, aten.bitwise_or.Tensor], lambda c, a, b: c.maximum(a, b)
    ),
}


def elementwise(
    target: Any, arguments: Sequence[Any], options: dict[str, Any], dtype: str, shape: Shape
) -> Value | None:
    """Return the value of an elementwise op, None if no rule of this file knows it.

    Args:
        target: the operator.
        arguments: values, and numbers.
        options: keyword arguments.
        dtype: of the result.
        shape: of the result.
    """
    values = [one for one in arguments if isinstance(one, Value)]
    dtypes = {one.dtype for one in values}
    if target is aten.where.self and dtype not in (*WHOLE, "bool", "c64"):
        return Calculator(dtype, shape).choose(*arguments)
    if target is aten.masked_fill.Scalar and dtype not in (*WHOLE, "bool", "c64"):
        data, mask, number = arguments
        return Calculator(dtype, shape).choose(mask, number, data)
    if target in LOGIC and dtypes == {"bool"}:
        calculator = Calculator("f32", shape)
        return calculator.truth(LOGIC[target](calculator, *arguments))
    if not {dtype, *dtypes}.isdisjoint((*WHOLE, "c64")):
        return None  # integers and complex numbers follow other rules
    packet = getattr(target, "overloadpacket", None)
    if packet in COMPARISONS and "bool" not in dtypes:
        calculator = Calculator(
            _widest([one.dtype for one in values if one.shape] or dtypes), shape
        )
        return calculator.truth(COMPARISONS[packet](calculator, *arguments))
    if target in ARITHMETIC and dtype != "bool" and options.get("rounding_mode") is None:
        # As in torch's kernels: computed in f32, and rounded once after each op.
        calculator = Calculator(wide(dtype), shape)
        return ARITHMETIC[target](calculator, *arguments, **options).cast(dtype)
    return None


def _widest(dtypes: Any) -> str:
    if {"f16", "bf16"} <= {*dtypes}:
        return "f32"  # neither has all numbers of the other
    return next(one for one in ("f64", "f32", "bf16", "f16") if one in dtypes)
