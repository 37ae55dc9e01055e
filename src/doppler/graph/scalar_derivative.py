"""The derivative of scalar functions by reverse mode.

The adjoint of a value is the gradient of a loss with respect to it. At a kink the derivative is the
mean of both sides (maximum, minimum, abs), but 0 for relu at 0, as in torch. Step functions (sign,
equal, less, and casts to integers and bool) have the derivative 0.
"""

import math
from collections.abc import Callable, Sequence

from doppler.graph.scalar import DTYPES, WHOLE, Apply, Element, Number, Scalar
from doppler.graph.scalar_algebra import (
    ZERO,
    add,
    cast,
    conj,
    div,
    dtype_of,
    list_elements,
    mul,
    neg,
    power,
    sub,
)

_ONE, _HALF = Number(1.0), Number(0.5)
_SLOPE_OF_ERF = Number(2 / math.sqrt(math.pi))


def adjoint_of(
    scalar: Scalar,
    operand: int,
    adjoint: Scalar,
    dtypes: Sequence[str],
    *,
    value: Scalar | None = None,
) -> Scalar:
    """Return the adjoint of an operand's element, given the adjoint of the function's value.

    Complex adjoints follow torch: they are conjugated derivatives, so that ``x - rate * adjoint``
    descends.

    Args:
        scalar: the function.
        operand: number of the operand.
        adjoint: of the value, in the value's dtype; it may have elements of further operands.
        dtypes: of all operands.
        value: a scalar that equals the function's value and is cheaper, for derivatives that need
            it; ``scalar`` unless given.

    Returns:
        The adjoint, in the operand's dtype.

    Raises:
        ValueError: the adjoint of a real element would be complex.
    """
    if not isinstance(scalar, Apply):
        return adjoint if scalar == Element(operand) else ZERO
    arguments = scalar.arguments
    if dtype_of(scalar, dtypes) == "c64":
        # For a function that is real on real numbers, the conjugate of f'(x) is f'(conj(x)).
        arguments = tuple(map(conj, arguments))
    shares = _RULES[scalar.function](adjoint, value or scalar, *arguments)
    result = ZERO
    for argument, share in zip(scalar.arguments, shares, strict=True):
        if operand in list_elements(argument):
            share = cast(share, dtype_of(argument, dtypes), dtypes)
            result = add(result, adjoint_of(argument, operand, share, dtypes))
    return result


def _square(a: Scalar) -> Scalar:
    return Apply("square", (a,))


def _is_less(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(b, Apply) and (a, b.function) == (ZERO, "relu"):
        return Apply("less", (a, *b.arguments))
    return Apply("less", (a, b))


def _is_larger_or_half(a: Scalar, b: Scalar) -> Scalar:
    """Return 1 where a is larger, and 0.5 where both are equal."""
    return add(_is_less(b, a), mul(_HALF, Apply("equal", (a, b))))


def _log(a: Scalar) -> Scalar:
    if isinstance(a, Number) and a.value > 0:
        return Number(math.log(a.value))
    return Apply("log", (a,))


def _adjoint_of_base(u: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """Return 0 where the exponent is 0, also at the base 0."""
    share = mul(u, mul(b, power(a, sub(b, _ONE))))
    return share if isinstance(b, Number) else Apply("where", (b, share, ZERO))


def _adjoint_of_exponent(u: Scalar, y: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """Return 0 at the base 0 unless the exponent is negative, where the logarithm is infinite."""
    share = mul(u, mul(y, _log(a)))
    if isinstance(a, Number) and a.value != 0:
        return share
    is_zero = _ONE if isinstance(a, Number) else Apply("equal", (a, ZERO))
    return Apply("where", (mul(is_zero, sub(_ONE, Apply("less", (b, ZERO)))), ZERO, share))


def _silu_slope(a: Scalar) -> Scalar:
    sigmoid = Apply("sigmoid", (a,))
    return mul(sigmoid, add(_ONE, mul(a, sub(_ONE, sigmoid))))


# Adjoints of the arguments, from the adjoint u and value y of a function and its arguments.
_RULES: dict[str, Callable[..., tuple[Scalar, ...]]] = {
    "neg": lambda u, y, a: (neg(u),),
    "exp": lambda u, y, a: (mul(u, y),),
    "log": lambda u, y, a: (div(u, a),),
    "sqrt": lambda u, y, a: (mul(_HALF, div(u, y)),),
    "rsqrt": lambda u, y, a: (mul(Number(-0.5), mul(u, mul(y, _square(y)))),),
    "relu": lambda u, y, a: (mul(u, _is_less(ZERO, y)),),
    "square": lambda u, y, a: (mul(Number(2.0), mul(u, a)),),
    "abs": lambda u, y, a: (mul(u, Apply("sign", (a,))),),
    "sigmoid": lambda u, y, a: (mul(u, mul(y, sub(_ONE, y))),),
    "silu": lambda u, y, a: (mul(u, _silu_slope(a)),),
    "tanh": lambda u, y, a: (mul(u, sub(_ONE, _square(y))),),
    "sign": lambda u, y, a: (ZERO,),
    "conj": lambda u, y, a: (conj(u),),
    "sin": lambda u, y, a: (mul(u, Apply("cos", (a,))),),
    "cos": lambda u, y, a: (neg(mul(u, Apply("sin", (a,)))),),
    "erf": lambda u, y, a: (mul(_SLOPE_OF_ERF, mul(u, Apply("exp", (neg(_square(a)),)))),),
    "add": lambda u, y, a, b: (u, u),
    "sub": lambda u, y, a, b: (u, neg(u)),
    "mul": lambda u, y, a, b: (mul(u, b), mul(a, u)),
    "div": lambda u, y, a, b: (div(u, b), neg(mul(u, div(y, b)))),
    "pow": lambda u, y, a, b: (_adjoint_of_base(u, a, b), _adjoint_of_exponent(u, y, a, b)),
    "maximum": lambda u, y, a, b: (
        mul(u, _is_larger_or_half(a, b)),
        mul(u, _is_larger_or_half(b, a)),
    ),
    "minimum": lambda u, y, a, b: (
        mul(u, _is_larger_or_half(b, a)),
        mul(u, _is_larger_or_half(a, b)),
    ),
    "equal": lambda u, y, a, b: (ZERO, ZERO),
    "less": lambda u, y, a, b: (ZERO, ZERO),
    "where": lambda u, y, c, a, b: (
        ZERO,
        Apply("where", (c, u, ZERO)),
        Apply("where", (c, ZERO, u)),
    ),
    **dict.fromkeys(DTYPES, lambda u, y, a: (u,)),
    **dict.fromkeys((*WHOLE, "bool"), lambda u, y, a: (ZERO,)),
}
