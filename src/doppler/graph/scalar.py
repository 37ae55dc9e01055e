"""Scalar functions of elements of tensors, which join the operands of an op.

As text: ``mul(x0,exp(x1))``. ``x0`` is an element of the first operand; numbers are constants.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Bytes of one element. The sum of several dtypes has the one that comes last here. Torch modules
# use whole numbers and bool as indices and masks.
DTYPES = {
    **{"bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8},
}
# Dtypes of whole numbers.
WHOLE = ("u8", "i8", "i16", "i32", "i64")

# Real floating-point operations of one call, and the number of arguments. A cast named like its
# dtype counts as none. silu(x) = x / (1 + exp(-x)); equal, less: 1 where it holds, else 0;
# where(c, x, y): x where c is not 0, else y.
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
# Operations per complex number; other functions are not defined for them.
COMPLEX_FLOPS = {"add": 2, "sub": 2, "neg": 2, "mul": 6, "conj": 1, "c64": 0}


@dataclass(frozen=True)
class Element:
    """The element of an operand of the op: 0 is the first."""

    operand: int


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Apply:
    """A function of `FUNCTIONS`, applied to scalars."""

    function: str
    arguments: tuple["Scalar", ...]


Scalar: TypeAlias = Element | Number | Apply


def render(scalar: Scalar) -> str:
    """The text of a scalar function."""
    if isinstance(scalar, Element):
        return f"x{scalar.operand}"
    if isinstance(scalar, Number):
        return repr(float(scalar.value))
    return f"{scalar.function}({','.join(map(render, scalar.arguments))})"


def parse_scalar(text: str) -> Scalar:
    """Read what `render` wrote.

    Args:
        text: of the function.

    Raises:
        ValueError: it is not a scalar function.
    """
    try:
        return _from_tree(ast.parse(text, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{text!r} is no scalar function") from None


def _from_tree(tree: ast.AST) -> Scalar:
    if isinstance(tree, ast.Name) and tree.id.startswith("x") and tree.id[1:].isdigit():
        return Element(int(tree.id[1:]))
    if isinstance(tree, ast.Name) and tree.id in ("inf", "nan"):
        return Number(float(tree.id))
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return Number(float(tree.value))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        operand = _from_tree(tree.operand)
        if isinstance(operand, Number):
            return Number(-operand.value)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        arity, _ = FUNCTIONS.get(tree.func.id, (None, 0))
        if arity == len(tree.args):
            return Apply(tree.func.id, tuple(map(_from_tree, tree.args)))
    raise ValueError(f"{ast.unparse(tree)!r} is no scalar function")


def count_flops(scalar: Scalar, *, is_complex: bool = False) -> int:
    """Real floating-point operations of one evaluation."""
    if not isinstance(scalar, Apply):
        return 0
    own = COMPLEX_FLOPS[scalar.function] if is_complex else FUNCTIONS[scalar.function][1]
    return own + sum(count_flops(one, is_complex=is_complex) for one in scalar.arguments)


def map_elements(scalar: Scalar, change: Callable[[int], Scalar]) -> Scalar:
    """The scalar with every element replaced by ``change(operand)``."""
    if isinstance(scalar, Element):
        return change(scalar.operand)
    if isinstance(scalar, Number):
        return scalar
    arguments = tuple(map_elements(argument, change) for argument in scalar.arguments)
    return Apply(scalar.function, arguments)
