"""Simplifies scalar functions of torch ops without changing any bit of their results.

The functions of `graph.scalar_algebra` fold constants of several ops into one and move them to the
front of products. But ``x * 1e30 * 1e30`` is not ``x * 1e60`` in f32, ``(x * 1e-30) * y`` may be
finite where ``x * y`` is not, and a last digit decides what ``floor`` returns. So the ops of a
module are computed one after another, as torch does, and simplified only as `Exact` does.
"""

from collections.abc import Callable, Sequence

import torch

from doppler.executor.elementwise import TORCH_DTYPES
from doppler.graph.scalar import WHOLE, Apply, Number, Scalar
from doppler.graph.scalar_algebra import Exact, conj, power

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


_EXACT = Exact()
_RULES: dict[str, Callable[..., Scalar]] = {
    **{"add": _EXACT.add, "sub": _EXACT.sub, "mul": _EXACT.mul, "div": _EXACT.div},
    **{"neg": _EXACT.neg, "pow": power, "conj": conj},
}
