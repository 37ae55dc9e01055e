"""Resolves op statements to nodes: expressions become scalar functions of operands' elements."""

from typing import NamedTuple

from lark import Token

from doppler.einsum.language.parser import (
    Aggregation,
    Expression,
    Function,
    OpStatement,
    TensorAccess,
)
from doppler.einsum.language.scope import Extents, Scope, check_letters, listed
from doppler.einsum.program import Einsum
from doppler.graph.scalar import COMPLEX_FLOPS, DTYPES, Apply, Element, Number, Scalar

# Functions within each other; more would exhaust Python's stack where they are differentiated.
_DEEPEST = 120
_AGGREGATIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def resolve_op(scope: Scope, statement: OpStatement) -> Einsum:
    """Return the node of an op.

    Args:
        scope: tensors defined so far.
        statement: of the op.

    Raises:
        InputError: what is wrong with the statement, and where.
    """
    output, aggregation = statement.output, statement.aggregation
    operands = _Operands(scope)
    value = operands.resolve(statement.expression)
    if not operands.numbers or value.dtype is None:
        raise scope.source.fault(
            output.name, f"'{output.name}' reads no tensor: constants are made with 'fill'"
        )
    operands.bind_broadcasts(output.extents)
    aggregated = aggregation.indices if aggregation else []
    operands.check_joined(output.indices, aggregated)
    operand_dtypes = tuple(scope.nodes[number].dtype for number in operands.numbers)
    operands.check_complex(operand_dtypes, aggregation)
    indices = "".join([*output.indices, *aggregated])
    extents = tuple(operands.extents.of[index] for index in indices)
    return Einsum(
        name=str(output.name),
        shape=extents[: len(output.indices)],
        dtype=value.dtype,
        indices=indices,
        operands=tuple(operands.numbers),
        operand_dtypes=operand_dtypes,
        extents=extents,
        operand_dims=tuple(
            tuple(indices.index(index) for index in own) for own in operands.indices
        ),
        join=value.scalar,
        aggregation=_AGGREGATIONS[aggregation.word] if aggregation else None,
    )


class _Value(NamedTuple):
    """The meaning of an expression; constants have no dtype."""

    scalar: Scalar
    dtype: str | None


class _Operands:
    """The distinct operands of one op, and the extents of its indices."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.source = scope.source
        self.numbers: list[int] = []
        self.indices: list[list[Token]] = []
        self.extents = Extents(scope.source)
        self.functions: list[Function] = []

    def resolve(self, expression: Expression, depth: int = 0) -> _Value:
        if isinstance(expression, TensorAccess):
            return self._element(expression)
        if not isinstance(expression, Function):
            value = self.scope.constants.value(expression)
            if isinstance(value, int) and value != float(value):
                raise self.source.fault(
                    expression, f"{value} has more digits than f64, which constants are in"
                )
            return _Value(Number(float(value)), None)
        self.scope.constants.check(expression)
        if depth == _DEEPEST:
            raise self.source.fault(
                expression.place, "an expression is nested too deeply: name a part of it"
            )
        arguments = [self.resolve(argument, depth + 1) for argument in expression.arguments]
        numbers = [one.scalar.value for one in arguments if isinstance(one.scalar, Number)]
        if len(numbers) == len(arguments):
            value = self.scope.constants.apply(expression, numbers)
            return _Value(Number(float(value)), None)
        self.functions.append(expression)
        scalar = Apply(expression.name, tuple(one.scalar for one in arguments))
        return _Value(scalar, self._joined_dtype(expression, arguments))

    def _element(self, tensor: TensorAccess) -> _Value:
        number = self.scope.find(tensor)
        node = self.scope.nodes[number]
        # A tensor that is read twice in the same way, as in X[i] * X[i], is one operand.
        for operand, known in enumerate(zip(self.numbers, self.indices, strict=True)):
            if known == (number, tensor.indices):
                return _Value(Element(operand), node.dtype)
        self.extents.bind(tensor, node.shape)
        self.numbers.append(number)
        self.indices.append(tensor.indices)
        return _Value(Element(len(self.numbers) - 1), node.dtype)

    def _joined_dtype(self, function: Function, arguments: list[_Value]) -> str:
        dtypes = list(dict.fromkeys(one.dtype for one in arguments if one.dtype is not None))
        if len(dtypes) > 1:
            raise self.source.fault(
                function.place,
                f"'{function.place}' joins {dtypes[0]} and {dtypes[1]}: cast one, "
                f"as in {dtypes[0]}(...)",
            )
        if dtypes == ["c64"]:
            self._check_defined(function)
        if dtypes == ["bool"] and function.name in ("neg", "sub"):
            raise self.source.fault(
                function.place,
                f"'{function.place}' is not defined for bool: cast it, as in f32(...)",
            )
        return function.name if function.name in DTYPES else dtypes[0]

    def _check_defined(self, function: Function) -> None:
        if function.name not in COMPLEX_FLOPS:
            raise self.source.fault(
                function.place,
                f"'{function.place}' is not defined where c64 is read; "
                f"defined are {listed(COMPLEX_FLOPS)}",
            )

    def check_complex(
        self, operand_dtypes: tuple[str, ...], aggregation: Aggregation | None
    ) -> None:
        """Check that an op which reads c64 has only functions and aggregations defined for it."""
        if "c64" not in operand_dtypes:
            return
        for function in self.functions:
            self._check_defined(function)
        if aggregation and aggregation.word != "sum":
            raise self.source.fault(
                aggregation.word, f"'{aggregation.word}' is not defined where c64 is read, only sum"
            )

    def bind_broadcasts(self, extents: dict[Token, Expression]) -> None:
        """Let indices that no operand has get their extents from the output."""
        for index, extent in extents.items():
            if index in self.extents.of:
                raise self.source.fault(
                    index, f"index '{index}' already has its extent from the operands"
                )
            self.extents.of[index] = self.scope.constants.extent(extent)

    def check_joined(self, output: list[Token], aggregated: list[Token]) -> None:
        """Check that the operands' indices, and no others, are output or aggregated ones."""
        check_letters(self.source, [*output, *aggregated])
        for indices, what in ((output, "output "), (aggregated, "")):
            for index in indices:
                if index not in self.extents.of:
                    raise self.source.fault(
                        index,
                        f"unknown {what}index '{index}'; "
                        f"the indices of the operands are {listed(self.extents.of)}",
                    )
        for index in (index for own in self.indices for index in own):
            if index not in output and index not in aggregated:
                raise self.source.fault(
                    index, f"index '{index}' is neither in the output nor aggregated"
                )
