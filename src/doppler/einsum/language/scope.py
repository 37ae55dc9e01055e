"""What the statements of a program text know of each other: constants, and the tensors so far."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from lark import Token

from doppler.einsum.language.parser import Expression, Function, Setting, Source, TensorAccess
from doppler.einsum.program import Node
from doppler.graph.scalar import DTYPES, FUNCTIONS

Constant: TypeAlias = int | float


_EVALUATE: dict[str, Callable[..., Any]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
    **{"pow": math.pow, "neg": operator.neg, "abs": abs, "maximum": max, "minimum": min},
    **{"exp": math.exp, "log": math.log, "sqrt": math.sqrt, "tanh": math.tanh},
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "relu": lambda x: max(x, 0),
    "square": lambda x: x * x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sign": lambda x: (x > 0) - (x < 0),
    **{"sin": math.sin, "cos": math.cos, "erf": math.erf},
    "where": lambda c, x, y: x if c else y,
    "equal": lambda x, y: int(x == y),
    "less": lambda x, y: int(x < y),
    # A constant has no dtype; it takes that of the other operand.
    **dict.fromkeys(["conj", *DTYPES], operator.pos),
}


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(names) or "none"


def positive_integers(source: Source, settings: Iterable[Setting] | None) -> dict[str, int]:
    """The settings ``name=number`` of a statement."""
    numbers: dict[str, int] = {}
    for name, number in settings or ():
        if name in numbers:
            raise source.fault(name, f"'{name}' is set twice")
        if not number.isdigit() or len(number) > _MAX_DIGITS or int(number) < 1:
            raise source.fault(number, f"'{name}' is {number}, not a positive integer")
        numbers[str(name)] = int(number)
    return numbers


def check_letters(source: Source, indices: Sequence[Token]) -> None:
    """Every index is one letter, and stands once."""
    for place, index in enumerate(indices):
        if len(index) != 1:
            raise source.fault(index, f"index '{index}' must be one letter")
        if index in indices[:place]:
            raise source.fault(index, f"index '{index}' is here twice")


_MAX_DIGITS = 30
# Largest extent of a dimension: with four of them, bytes and operations are still finite.
_MAX_EXTENT = 2**40


class Constants:
    """Evaluates expressions without tensors."""

    def __init__(self, source: Source, values: Mapping[str, int]) -> None:
        self.source = source
        self.values = values

    def value(self, expression: Expression) -> Constant:
        """The number that an expression stands for.

        Raises:
            InputError: it reads a tensor, or something unknown.
        """
        if isinstance(expression, TensorAccess):
            raise self.source.fault(
                expression.name, f"'{expression.name}' is a tensor, where a constant must be"
            )
        if isinstance(expression, Function):
            self.check(expression)
            return self.apply(expression, [self.value(one) for one in expression.arguments])
        if expression.type == "NUMBER":
            if len(expression) > _MAX_DIGITS:
                raise self.source.fault(expression, "the number has too many digits")
            return int(expression) if expression.isdigit() else float(expression)
        if expression == "inf":
            return math.inf
        if expression not in self.values:
            raise self.source.fault(
                expression,
                f"unknown parameter '{expression}'; the parameters are {listed(self.values)}",
            )
        return self.values[expression]

    def apply(self, function: Function, arguments: Sequence[Constant]) -> Constant:
        """The value of a function of constants."""
        try:
            return _EVALUATE[function.name](*arguments)
        except (ArithmeticError, ValueError):
            shown = listed(map(str, arguments))
            raise self.source.fault(
                function.place, f"'{function.place}' of {shown} has no value"
            ) from None

    def check(self, function: Function) -> None:
        """It exists and has its arguments."""
        if function.name not in FUNCTIONS:
            raise self.source.fault(
                function.place,
                f"unknown function '{function.name}'; the functions are {listed(FUNCTIONS)}",
            )
        arity, given = FUNCTIONS[function.name][0], len(function.arguments)
        if given != arity:
            raise self.source.fault(
                function.place,
                f"'{function.name}' takes {arity} argument{'s' * (arity > 1)}, not {given}",
            )

    def extent(self, expression: Expression, least: int = 1) -> int:
        """A whole number of elements."""
        value = self.value(expression)
        if float(value).is_integer() and value >= least:
            if value > _MAX_EXTENT:
                raise self.source.fault(_first(expression), f"{value:.3g} are too many elements")
            return int(value)
        raise self.source.fault(
            _first(expression),
            f"{value} is no number of elements: it must be whole, and {least} or more",
        )


class Scope:
    """The tensors that are defined so far, as nodes without formations.

    Attributes:
        numbers: of the nodes, by name.
        splits: that the text gives, by name.
    """

    def __init__(self, source: Source, constants: Constants) -> None:
        self.source = source
        self.constants = constants
        self.nodes: list[Node] = []
        self.numbers: dict[str, int] = {}
        self.splits: dict[str, tuple[int, ...]] = {}

    def add(self, name: Token, node: Node, splits: Sequence[Setting] | None = None) -> None:
        """Define a tensor; ``splits`` stands behind its statement."""
        if name in self.numbers:
            raise self.source.fault(name, f"tensor '{name}' is defined twice")
        if splits is not None:
            self.splits[node.name] = self._parts(node, splits)
        self.numbers[node.name] = len(self.nodes)
        self.nodes.append(node)

    def find(self, tensor: TensorAccess) -> int:
        """The number of the node that a tensor is read from, whose dimensions it must have."""
        name = tensor.name
        if name not in self.numbers:
            raise self.source.fault(
                name, f"unknown tensor '{name}'; so far there are {listed(self.numbers)}"
            )
        number = self.numbers[name]
        given, rank = len(tensor.indices), len(self.nodes[number].shape)
        if rank != given:
            raise self.source.fault(name, f"'{name}' has {rank} dimensions, not {given}")
        check_letters(self.source, tensor.indices)
        return number

    def dtype(self, token: Token) -> str:
        """The dtype of that name."""
        if token not in DTYPES:
            raise self.source.fault(
                token, f"unknown dtype '{token}'; the dtypes are {listed(DTYPES)}"
            )
        return str(token)

    def _parts(self, node: Node, settings: Sequence[Setting]) -> tuple[int, ...]:
        parts = positive_integers(self.source, settings)
        for index, number in settings:
            if index not in node.indices:
                raise self.source.fault(
                    index, f"unknown index '{index}'; the indices are {listed(node.indices)}"
                )
            fault = node.split_fault(node.indices.index(index), int(number))
            if fault:
                raise self.source.fault(number, fault)
        return tuple(parts.get(index, 1) for index in node.indices)


class Extents:
    """The extents that the tensors of one statement give to its indices."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.of: dict[str, int] = {}
        self._given_by: dict[str, str] = {}  # the tensor that an extent is from

    def bind(self, tensor: TensorAccess, shape: Sequence[int]) -> None:
        """The indices of a tensor have the extents of its dimensions."""
        for index, extent in zip(tensor.indices, shape, strict=True):
            if self.of.setdefault(index, extent) != extent:
                raise self.source.fault(
                    index,
                    f"index '{index}' has {extent} elements in '{tensor.name}', "
                    f"but {self.of[index]} in '{self._given_by[index]}'",
                )
            self._given_by.setdefault(index, tensor.name)


def _first(expression: Expression) -> Token:
    """Where an expression begins in the text."""
    while isinstance(expression, Function):
        operand = expression.arguments[0]
        expression = expression.place if len(expression.arguments) == 1 else operand
    return expression.name if isinstance(expression, TensorAccess) else expression
