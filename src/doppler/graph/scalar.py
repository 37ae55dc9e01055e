"""Scalar functions of elements of tensors, which join the operands of an op.

As text they look like ``mul(x0,exp(x1))``. ``x0`` is an element of the first operand, and numbers
are constants.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Bytes of one element. A sum of several dtypes has the dtype that comes last here. Torch modules
# use integers and bool as indices and masks.
DTYPES = {
    **{"bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8},
}
# Dtypes of integers.
WHOLE = ("u8", "i8", "i16", "i32", "i64")

# Real floating-point operations of one call, by number of arguments. A cast is named like its dtype
# and counts as no operation. silu(x) = x / (1 + exp(-x)). equal and less are 1 where they hold,
# else 0. where(c, x, y) is x where c is not 0, else y.
_UNARY = {
    **{"neg": 1, "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "relu": 1, "square": 1, "abs": 1},
    **{"sigmoid": 3, "silu": 4, "tanh": 1, "sign": 1, "conj": 1},
    **{"sin": 1, "cos": 1, "erf": 1},
}
_BINARY = {
    **{"add": 1, "sub": 1, "mul": 1, "div": 1, "pow": 1},
    **{"maximum": 1, "minimum": 1, "equal": 1, "less": 1},
}
FUNCTIONS = {
    **{name: (1, flops) for name, flops in _UNARY.items()},
    **{name: (2, flops) for name, flops in _BINARY.items()},
    "where": (3, 1),
    **{dtype: (1, 0) for dtype in DTYPES},
}
# Real operations of one call on complex numbers; other functions are not defined for these.
COMPLEX_FLOPS = {"add": 2, "sub": 2, "neg": 2, "mul": 6, "conj": 1, "c64": 0}


@dataclass(frozen=True)
class Element:
    """An element of an operand of the op.

    Attributes:
        operand: its number, from 0.
    """

    operand: int


@dataclass(frozen=True)
class Number:
    """A constant.

    Attributes:
        value: of the constant.
    """

    value: float


@dataclass(frozen=True)
class Apply:
    """A function applied to scalars.

    Attributes:
        function: one of `FUNCTIONS`.
        arguments: of the function.
    """

    function: str
    arguments: tuple["Scalar", ...]


Scalar: TypeAlias = Element | Number | Apply


def render(scalar: Scalar) -> str:
    """Return a scalar function as text.

    Args:
        scalar: the function.
    """
    if isinstance(scalar, Element):
        return f"x{scalar.operand}"
    if isinstance(scalar, Number):
        return repr(float(scalar.value))
    return f"{scalar.function}({','.join(map(render, scalar.arguments))})"


# A function with its bracket, an element, a number, or a mark.
_TOKEN = re.compile(
    r"\s*(?:(?P<function>[a-z]\w*)\(|x(?P<element>\d+)"
    r"|(?P<number>-?(?:inf|nan|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))|(?P<mark>[,)]))\s*",
    re.ASCII,
)


def parse_scalar(text: str) -> Scalar:
    """Read what `render` wrote, however deeply it is nested.

    Args:
        text: of the function.

    Raises:
        ValueError: it is not a scalar function.
    """
    fault = ValueError(f"{text!r} is not a scalar function")
    # The calls whose brackets are open, each with its arguments so far; first the text itself.
    calls: list[tuple[str, list[Scalar]]] = [("", [])]
    place, is_complete = 0, False  # whether the last argument is complete
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or is_complete != bool(token["mark"]):
            raise fault
        place = token.end()
        if token["function"]:
            calls.append((token["function"], []))
        elif token["mark"] == ",":
            is_complete = False
        elif token["mark"]:
            name, arguments = calls.pop()
            if not calls or FUNCTIONS.get(name, (0, 0))[0] != len(arguments):
                raise fault
            calls[-1][1].append(Apply(name, tuple(arguments)))
        else:
            element, is_complete = token["element"], True
            leaf = Element(int(element)) if element else Number(float(token["number"]))
            calls[-1][1].append(leaf)
    if len(calls) > 1 or len(calls[0][1]) > 1 or not is_complete:
        raise fault
    return calls[0][1][0]


def count_flops(scalar: Scalar, *, is_complex: bool = False) -> int:
    """Count the real floating-point operations of one evaluation.

    Args:
        scalar: the function.
        is_complex: whether it is evaluated on complex numbers.
    """
    if not isinstance(scalar, Apply):
        return 0
    own = COMPLEX_FLOPS[scalar.function] if is_complex else FUNCTIONS[scalar.function][1]
    return own + sum(count_flops(one, is_complex=is_complex) for one in scalar.arguments)


def count_calls(scalar: Scalar) -> int:
    """Count the functions in a scalar function.

    Args:
        scalar: the function.
    """
    return 1 + sum(map(count_calls, scalar.arguments)) if isinstance(scalar, Apply) else 0


def map_elements(scalar: Scalar, change: Callable[[int], Scalar]) -> Scalar:
    """Replace every element of a scalar function.

    Args:
        scalar: the function.
        change: returns the replacement for an element, given the number of its operand.
    """
    if isinstance(scalar, Element):
        return change(scalar.operand)
    if isinstance(scalar, Number):
        return scalar
    arguments = tuple(map_elements(argument, change) for argument in scalar.arguments)
    return Apply(scalar.function, arguments)
