"""What the statements of a program text share: constants, and the tensors defined so far."""

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
    # A constant has no dtype; it takes the dtype of the other operand.
    **dict.fromkeys(["conj", *DTYPES], operator.pos),
}


# Least and largest integer of a dtype, or largest number of one of floating-point numbers.
_INTEGERS = {
    **{"bool": (0, 1), "u8": (0, 2**8 - 1)},
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
_LARGEST = {"f16": 65504.0, "bf16": 2.0**127 * (2 - 2.0**-7), "f32": 2.0**127 * (2 - 2.0**-23)}


def holds(dtype: str, value: Constant) -> bool:
    """Return whether a tensor of a dtype can have a value, rounded if it is no integer.

    Args:
        dtype: of the tensor.
        value: of an element.
    """
    if dtype in _INTEGERS:
        least, most = _INTEGERS[dtype]
        return float(value).is_integer() and least <= value <= most and value == float(value)
    return not _LARGEST.get(dtype, math.inf) < abs(value) < math.inf


def listed(names: Iterable[str]) -> str:
    """Join names for a message.

    Args:
        names: to join.
    """
    return ", ".join(names) or "none"


def positive_integers(source: Source, settings: Iterable[Setting] | None) -> dict[str, int]:
    """Read the settings ``name=number`` of a statement.

    Args:
        source: of the statement.
        settings: of the statement; None if it has none.

    Returns:
        Numbers by name.

    Raises:
        InputError: a name is set twice, or a number is not a positive integer.
    """
    numbers: dict[str, int] = {}
    for name, number in settings or ():
        if name in numbers:
            raise source.fault(name, f"'{name}' is set twice")
        if not number.isdigit() or len(number) > _MAX_DIGITS or int(number) < 1:
            raise source.fault(number, f"'{name}' is {number}, not a positive integer")
        numbers[str(name)] = int(number)
    return numbers


def check_letters(source: Source, indices: Sequence[Token]) -> None:
    """Check that every index is one letter, and appears once.

    Args:
        source: of the indices.
        indices: to check.

    Raises:
        InputError: names the index.
    """
    for place, index in enumerate(indices):
        if len(index) != 1 or not index.isalpha():
            raise source.fault(index, f"index '{index}' must be one letter")
        if index in indices[:place]:
            raise source.fault(index, f"index '{index}' appears twice")


_MAX_DIGITS = 30
# Largest extent of a dimension; with four such dimensions bytes and operations are still finite.
_MAX_EXTENT = 2**40


class Constants:
    """Evaluates expressions without tensors.

    Args:
        source: of the expressions.
        values: of parameters, by name.
    """

    def __init__(self, source: Source, values: Mapping[str, int]) -> None:
        self.source = source
        self.values = values

    def value(self, expression: Expression) -> Constant:
        """Return the value of an expression.

        Args:
            expression: of constants.

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
        """Return the value of a function of constants.

        Args:
            function: that is applied.
            arguments: their values.

        Raises:
            InputError: the function is not defined for these arguments.
        """
        try:
            value = _EVALUATE[function.name](*arguments)
            float(value)  # refuses whole numbers that are too large for one
            return value
        except (ArithmeticError, ValueError):
            shown = listed(f"{one!s:.20}" for one in arguments)
            raise self.source.fault(
                function.place, f"'{function.place}' of {shown} has no value"
            ) from None

    def check(self, function: Function) -> None:
        """Check that a function exists, and has the right number of arguments.

        Args:
            function: to check.

        Raises:
            InputError: names the function.
        """
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
        """Return the value of an expression that must be a number of elements.

        Args:
            expression: of constants.
            least: smallest value.

        Raises:
            InputError: it is not a whole number, or too small or too large.
        """
        value = self.value(expression)
        if float(value).is_integer() and value >= least:
            if value > _MAX_EXTENT:
                raise self.source.fault(_first(expression), f"{value:.3g} are too many elements")
            return int(value)
        raise self.source.fault(
            _first(expression),
            f"{value} is not a number of elements: it must be whole, and at least {least}",
        )


class Scope:
    """The tensors that are defined so far, as nodes without formations.

    Args:
        source: of the program.
        constants: values of its parameters.

    Attributes:
        source: of the program.
        constants: values of its parameters.
        nodes: in the order of definition.
        numbers: numbers of the nodes, by name.
        splits: that the text gives, by name.
    """

    def __init__(self, source: Source, constants: Constants) -> None:
        self.source = source
        self.constants = constants
        self.nodes: list[Node] = []
        self.numbers: dict[str, int] = {}
        self.splits: dict[str, tuple[int, ...]] = {}

    def add(self, name: Token, node: Node, splits: Sequence[Setting] | None = None) -> None:
        """Define a tensor.

        Args:
            name: of the tensor.
            node: that computes it.
            splits: settings at the end of its statement.

        Raises:
            InputError: the name is in use, or the node cannot be split so.
        """
        if name in self.numbers:
            raise self.source.fault(name, f"tensor '{name}' is defined twice")
        if splits is not None:
            self.splits[node.name] = self._parts(node, splits)
        self.numbers[node.name] = len(self.nodes)
        self.nodes.append(node)

    def find(self, tensor: TensorAccess) -> int:
        """Return the number of the node that a tensor is read from.

        Args:
            tensor: read with as many indices as it has dimensions.

        Raises:
            InputError: the tensor is unknown, or the number of indices is wrong.
        """
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
        """Return the dtype that a token names.

        Args:
            token: name of a dtype.

        Raises:
            InputError: no such dtype.
        """
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
    """Extents of the indices of one statement, which its tensors determine.

    Args:
        source: of the statement.

    Attributes:
        source: of the statement.
        of: extents by index.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.of: dict[str, int] = {}
        self._given_by: dict[str, str] = {}  # tensor that determined the extent

    def bind(self, tensor: TensorAccess, shape: Sequence[int]) -> None:
        """Let the indices of a tensor have the extents of its dimensions.

        Args:
            tensor: with one index per dimension.
            shape: of the tensor.

        Raises:
            InputError: an index has another extent already.
        """
        for index, extent in zip(tensor.indices, shape, strict=True):
            if self.of.setdefault(index, extent) != extent:
                raise self.source.fault(
                    index,
                    f"index '{index}' has {extent} elements in '{tensor.name}', "
                    f"but {self.of[index]} in '{self._given_by[index]}'",
                )
            self._given_by.setdefault(index, tensor.name)


def _first(expression: Expression) -> Token:
    """Return the first token of an expression."""
    while isinstance(expression, Function):
        operand = expression.arguments[0]
        expression = expression.place if len(expression.arguments) == 1 else operand
    return expression.name if isinstance(expression, TensorAccess) else expression
