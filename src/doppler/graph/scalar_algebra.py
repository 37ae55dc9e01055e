"""Builds scalar functions, and simplifies them on the way, so that they look as if written by hand.

Constants are folded and moved to the front of products, unless they are so large or small that
products might overflow elsewhere. Signs move to the very front. ``0 * x`` is 0, even if x may be
infinite. That is for gradients, which nobody has written. `Exact` does less, and changes no bit of
a result: so the ops of torch modules are simplified.
"""

from collections.abc import Sequence

from doppler.graph.scalar import DTYPES, Apply, Element, Number, Scalar

ZERO = Number(0.0)


def list_elements(scalar: Scalar) -> list[int]:
    """Return the operands whose elements occur, each once, in the order of first appearance.

    Args:
        scalar: the function.
    """
    if isinstance(scalar, Element):
        return [scalar.operand]
    if isinstance(scalar, Number):
        return []
    return list(dict.fromkeys(one for part in scalar.arguments for one in list_elements(part)))


def dtype_of(scalar: Scalar, dtypes: Sequence[str]) -> str | None:
    """Return the dtype of a scalar's value: the widest of its operands; None for a constant.

    Args:
        scalar: the function.
        dtypes: of its operands. DTYPES is in the order of width.
    """
    if isinstance(scalar, Element):
        return dtypes[scalar.operand]
    if isinstance(scalar, Number):
        return None
    if scalar.function in DTYPES:
        return scalar.function
    found = {dtype_of(argument, dtypes) for argument in scalar.arguments}
    return next((dtype for dtype in reversed(DTYPES) if dtype in found), None)


def cast(scalar: Scalar, dtype: str | None, dtypes: Sequence[str]) -> Scalar:
    """Cast a scalar to a dtype; constants need no cast.

    Args:
        scalar: the function.
        dtype: of the result; None: any.
        dtypes: of the operands.

    Raises:
        ValueError: a complex number would become a real one.
    """
    own = dtype_of(scalar, dtypes)
    if own is None or dtype is None or own == dtype:
        return scalar
    if own == "c64":
        raise ValueError(f"a complex number cannot be cast to {dtype}")
    return Apply(dtype, (scalar,))


class Exact:
    """Simplifications that change no bit of a result where neither operand is 0."""

    def neg(self, a: Scalar) -> Scalar:
        match a:
            case Number(value):
                return Number(-value)
            case Apply("neg", (inner,)):
                return inner
            case Apply("mul", (Number(value), rest)):
                return self.mul(Number(-value), rest)
        return Apply("neg", (a,))

    def add(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(one), Number(other):
                return Number(one + other)
            case _, Apply("neg", (inner,)):
                return self.sub(a, inner)
            case Apply("neg", (inner,)), _:
                return self.sub(b, inner)
            case Apply("mul", (one, other)), Apply("mul", factors) if factors == (other, one):
                return self.mul(Number(2.0), a)
        return self.mul(Number(2.0), a) if a == b else Apply("add", (a, b))

    def sub(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(one), Number(other):
                return Number(one - other)
            case _, Apply("neg", (inner,)):
                return self.add(a, inner)
        return Apply("sub", (a, b))

    def mul(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(one), Number(other):
                return Number(one * other)
            case _, Number():
                return self.mul(b, a)
            case Number(1), _:
                return b
            case Number(-1), _:
                return self.neg(b)
            case Number(value), Apply("neg", (inner,)):
                return self.mul(Number(-value), inner)
            case Apply("neg", (inner,)), _:
                return self.neg(self.mul(inner, b))
            case _, Apply("neg", (inner,)):
                return self.neg(self.mul(a, inner))
        return Apply("mul", (a, b))

    def div(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(one), Number(other) if other != 0:
                return Number(one / other)
            case _, Number(1):
                return a
            case Apply("neg", (inner,)), _:
                return self.neg(self.div(inner, b))
        return Apply("div", (a, b))


class _Free(Exact):
    """Also drops zeros, and reorders constants and signs."""

    def neg(self, a: Scalar) -> Scalar:
        match a:
            case Apply("sub", (one, other)):
                return self.sub(other, one)
        return super().neg(a)

    def add(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(), Number():
                return super().add(a, b)
            case Number(0), _:
                return b
            case _, Number(0):
                return a
        return super().add(a, b)

    def sub(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(), Number():
                return super().sub(a, b)
            case Number(0), _:
                return self.neg(b)
            case _, Number(0):
                return a
        return super().sub(a, b)

    def mul(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case Number(), Number():
                return super().mul(a, b)
            case _, Number():
                return self.mul(b, a)
            case Number(0), _:
                return ZERO
            case (Apply("neg"), _) | (_, Apply("neg")):
                return super().mul(a, b)
            case Number(value), Apply("mul", (Number(other), rest)) if _are_mild(value, other):
                return self.mul(Number(value * other), rest)
            case Number(), _:
                return super().mul(a, b)
            case Apply("mul", (Number(value), rest)), _ if _are_mild(value):
                return self.mul(Number(value), self.mul(rest, b))
            case _, Apply("mul", (Number(value), rest)) if _are_mild(value):
                return self.mul(Number(value), self.mul(a, rest))
        return super().mul(a, b)

    def div(self, a: Scalar, b: Scalar) -> Scalar:
        match a, b:
            case (Number(), Number(other)) if other != 0:
                return super().div(a, b)
            case Number(0), _:
                return ZERO
            case _, Number(1):
                return a
            case Apply("mul", (Number(value), rest)), _ if _are_mild(value):
                return self.mul(Number(value), self.div(rest, b))
        return super().div(a, b)


def _are_mild(*constants: float) -> bool:
    """Whether products with constants hardly overflow earlier or later if they are reordered."""
    return all(value == 0 or 2.0**-30 <= abs(value) <= 2.0**30 for value in constants)


_FREE = _Free()


def neg(a: Scalar) -> Scalar:
    """Return ``-a``.

    Args:
        a: operand.
    """
    return _FREE.neg(a)


def add(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a + b``.

    Args:
        a: left operand.
        b: right operand.
    """
    return _FREE.add(a, b)


def sub(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a - b``.

    Args:
        a: left operand.
        b: right operand.
    """
    return _FREE.sub(a, b)


def mul(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a * b``.

    Args:
        a: left operand.
        b: right operand.
    """
    return _FREE.mul(a, b)


def div(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``.

    Args:
        a: numerator.
        b: denominator.
    """
    return _FREE.div(a, b)


def power(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a`` to the power of ``b``.

    Args:
        a: base.
        b: exponent.
    """
    match b:
        case Number(0):
            return Number(1.0)
        case Number(1):
            return a
        case Number(2):
            return Apply("square", (a,))
    return Apply("pow", (a, b))


def conj(a: Scalar) -> Scalar:
    """Return the complex conjugate of ``a``.

    Args:
        a: operand.
    """
    match a:
        case Number():
            return a
        case Apply("conj", (inner,)):
            return inner
    return Apply("conj", (a,))
