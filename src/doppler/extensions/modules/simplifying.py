"""Simplifies scalar functions of torch ops without changing any bit of their results.

`graph.scalar_algebra` goes further: it folds constants of several ops into one and moves them to
the front of products. But ``x * 1e30 * 1e30`` is not ``x * 1e60`` in f32, ``(x * 1e-30) * y`` may
be finite where ``x * y`` is not, and a last digit decides what ``floor`` returns. The ops of a
module are computed one after another, as torch does.
"""

from collections.abc import Callable, Sequence

import torch

from doppler.executor.elementwise import TORCH_DTYPES
from doppler.graph.scalar import WHOLE, Apply, Number, Scalar
from doppler.graph.scalar_algebra import conj, power

# Dtypes whose ops are computed in f32 and rounded.
HALF = ("f16", "bf16")
# Functions whose results need no rounding if their arguments are rounded.
_UNROUNDED = frozenset("neg relu abs sign maximum minimum equal less where bool f16 bf16".split())


def wide(dtype: str) -> str:
    """Return the dtype in which torch computes an op with results of a dtype.

    Args:
        dtype: of the results.
    """
    return "f32" if dtype in HALF else dtype


def rounded(number: float, dtype: str) -> float:
    """Return the number that a tensor of a dtype holds if it is filled with a number.

    Args:
        number: to round.
        dtype: of the tensor.
    """
    if dtype == "bool":
        return float(bool(number))
    if dtype in WHOLE:
        return float(int(number)) if abs(number) < float("inf") else number
    exact = torch.tensor(number, dtype=torch.float64, device="cpu")
    return exact.to(TORCH_DTYPES[dtype]).real.item()


def simplified(function: str, arguments: Sequence[Scalar], dtype: str) -> Scalar:
    """Return a function of scalars in its simplest form that has the same result in every bit.

    Args:
        function: one of `graph.scalar.FUNCTIONS`.
        arguments: of the function.
        dtype: of the result.
    """
    rule = _RULES.get(function)
    if rule is None or any(map(_is_nothing, arguments)):
        return Apply(function, tuple(arguments))
    scalar = rule(*arguments)
    return Number(rounded(scalar.value, dtype)) if isinstance(scalar, Number) else scalar


def rounded_to(scalar: Scalar, dtype: str) -> Scalar:
    """Return a scalar that is rounded to its dtype even where it is part of an op in f32.

    Args:
        scalar: in a function that is computed in f32.
        dtype: of the scalar; only f16 and bf16 need rounding.
    """
    if dtype in HALF and isinstance(scalar, Apply) and scalar.function not in _UNROUNDED:
        return Apply(dtype, (scalar,))
    return scalar


def _is_nothing(scalar: Scalar) -> bool:
    """Whether it is 0, or 0 times a value, which is NaN where that value is infinite."""
    match scalar:
        case Number(0) | Apply("mul", (Number(0), _)):
            return True
    return False


def _neg(a: Scalar) -> Scalar:
    match a:
        case Number(value):
            return Number(-value)
        case Apply("neg", (inner,)):
            return inner
        case Apply("mul", (Number(value), rest)):
            return _mul(Number(-value), rest)
    return Apply("neg", (a,))


def _add(a: Scalar, b: Scalar) -> Scalar:
    match a, b:
        case Number(one), Number(other):
            return Number(one + other)
        case _, Apply("neg", (inner,)):
            return Apply("sub", (a, inner))
        case Apply("neg", (inner,)), _:
            return Apply("sub", (b, inner))
        case Apply("mul", (one, other)), Apply("mul", factors) if factors == (other, one):
            return _mul(Number(2.0), a)
    return _mul(Number(2.0), a) if a == b else Apply("add", (a, b))


def _sub(a: Scalar, b: Scalar) -> Scalar:
    match a, b:
        case Number(one), Number(other):
            return Number(one - other)
        case _, Apply("neg", (inner,)):
            return _add(a, inner)
    return Apply("sub", (a, b))


def _mul(a: Scalar, b: Scalar) -> Scalar:
    match a, b:
        case Number(one), Number(other):
            return Number(one * other)
        case _, Number():
            return _mul(b, a)
        case Number(1), _:
            return b
        case Number(-1), _:
            return _neg(b)
        case Number(value), Apply("neg", (inner,)):
            return _mul(Number(-value), inner)
        case Apply("neg", (inner,)), _:
            return _neg(_mul(inner, b))
        case _, Apply("neg", (inner,)):
            return _neg(_mul(a, inner))
    return Apply("mul", (a, b))


def _div(a: Scalar, b: Scalar) -> Scalar:
    match a, b:
        case Number(one), Number(other) if other != 0:
            return Number(one / other)
        case _, Number(1):
            return a
        case Apply("neg", (inner,)), _:
            return _neg(_div(inner, b))
    return Apply("div", (a, b))


_RULES: dict[str, Callable[..., Scalar]] = {
    **{"add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg},
    **{"pow": power, "conj": conj},
}
