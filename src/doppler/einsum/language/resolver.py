"""Statements to Program: names get their nodes, indices their extents, parameters their values."""

from collections.abc import Iterable, Mapping

from lark import Token

from doppler.einsum.parser import (
    Aggregation,
    Expression,
    InputStatement,
    OpStatement,
    ParameterStatement,
    Setting,
    Source,
    Tensor,
    parse,
)
from doppler.einsum.program import DTYPES, Apply, Einsum, Input, Program, Scalar, insert_formations
from doppler.errors import InputError

AGGREGATIONS = {"sum": "add"}  # the word in the text, and the scalar function


def parse_program(
    text: str,
    *,
    file: str = "<program>",
    preset: str = "paper",
    params: Mapping[str, int] | None = None,
) -> Program:
    """Read a program, with the values of its parameters filled in.

    Args:
        text: the program, in the language of docs/einsum.md.
        file: what error messages call the text.
        preset: which of the declared values the parameters take.
        params: values by parameter name; they win over the preset.

    Raises:
        InputError: ``file:line:column: what is wrong, in 'the line'``. A fault of ``preset`` or
            ``params`` has no place in the text: its message starts with ``file:`` alone.
    """
    source, name, statements = parse(text, file)
    declared = [one for one in statements if isinstance(one, ParameterStatement)]
    values = _parameter_values(source, declared, preset, params or {})
    resolver = _Resolver(source, values)
    for statement in statements:
        if isinstance(statement, InputStatement):
            resolver.add_input(statement)
        elif isinstance(statement, OpStatement):
            resolver.add_op(statement)
    return Program(
        name=str(name),
        parameters=values,
        nodes=insert_formations(resolver.nodes),
        given_splits=resolver.splits,
    )


def _parameter_values(
    source: Source, declared: list[ParameterStatement], preset: str, params: Mapping[str, int]
) -> dict[str, int]:
    own_presets: dict[str, dict[str, int]] = {}
    for parameter in declared:
        if parameter.name in own_presets:
            raise source.fault(parameter.name, f"parameter '{parameter.name}' is declared twice")
        own_presets[str(parameter.name)] = _numbers(source, parameter.presets)
    _check_choices(source.file, own_presets, preset, params)
    for parameter in declared:
        own = own_presets[parameter.name]
        if parameter.name not in params and preset not in own:
            raise source.fault(
                parameter.name,
                f"parameter '{parameter.name}' has no value for preset {preset!r}; "
                f"its presets are {_listed(own)}",
            )
    return {
        name: params[name] if name in params else own[preset] for name, own in own_presets.items()
    }


def _check_choices(
    file: str,
    own_presets: Mapping[str, Mapping[str, int]],
    preset: str,
    params: Mapping[str, int],
) -> None:
    presets = dict.fromkeys(name for own in own_presets.values() for name in own)
    if presets and preset not in presets:
        raise InputError(f"{file}: unknown preset {preset!r}; the presets are {_listed(presets)}")
    for name, value in params.items():
        if name not in own_presets:
            raise InputError(
                f"{file}: unknown parameter {name!r}; the parameters are {_listed(own_presets)}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{file}: parameter {name!r} is {value!r}, not a positive integer")


def _numbers(source: Source, settings: list[Setting] | None) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, number in settings or ():
        if name in numbers:
            raise source.fault(name, f"'{name}' is set twice")
        if int(number) < 1:
            raise source.fault(number, f"'{name}' is {number}, not a positive integer")
        numbers[str(name)] = int(number)
    return numbers


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


class _Resolver:
    """Checks statements in the order of the text and turns them into nodes, formations left out."""

    def __init__(self, source: Source, values: Mapping[str, int]) -> None:
        self.source = source
        self.values = values
        self.nodes: list[Input | Einsum] = []
        self.numbers: dict[str, int] = {}  # of the nodes, by name
        self.splits: dict[str, tuple[int, ...]] = {}

    def add_input(self, statement: InputStatement) -> None:
        dtype = statement.dtype
        if dtype not in DTYPES:
            raise self.source.fault(
                dtype, f"unknown dtype '{dtype}'; the dtypes are {_listed(DTYPES)}"
            )
        shape = tuple(self._extent(token) for token in statement.extents)
        self._append(statement.name, Input(name=str(statement.name), shape=shape, dtype=str(dtype)))

    def add_op(self, statement: OpStatement) -> None:
        operands = _Operands(self.source, self.nodes, self.numbers)
        join = operands.resolve(statement.expression)
        output, aggregation = statement.output, statement.aggregation
        aggregated = aggregation.indices if aggregation else []
        operands.check_joined(output.indices, aggregated)
        indices = "".join([*output.indices, *aggregated])
        node = Einsum(
            name=str(output.name),
            dtype=self.nodes[operands.numbers[0]].dtype,
            indices=indices,
            extents=tuple(operands.extents[index] for index in indices),
            output_rank=len(output.indices),
            operands=tuple(operands.numbers),
            operand_dims=tuple(
                tuple(indices.index(index) for index in own) for own in operands.indices
            ),
            join=join,
            aggregation=self._aggregation(aggregation),
        )
        self._append(output.name, node)
        self.splits[node.name] = self._splits(node, statement.splits)

    def _append(self, name: Token, node: Input | Einsum) -> None:
        if name in self.numbers:
            raise self.source.fault(name, f"tensor '{name}' is defined twice")
        self.numbers[node.name] = len(self.nodes)
        self.nodes.append(node)

    def _extent(self, token: Token) -> int:
        if token.type == "NAME" and token not in self.values:
            raise self.source.fault(
                token, f"unknown parameter '{token}'; the parameters are {_listed(self.values)}"
            )
        extent = self.values[token] if token.type == "NAME" else int(token)
        if extent < 1:
            raise self.source.fault(token, "a dimension has at least 1 element")
        return extent

    def _aggregation(self, aggregation: Aggregation | None) -> str | None:
        if aggregation is None:
            return None
        if aggregation.name not in AGGREGATIONS:
            raise self.source.fault(
                aggregation.name,
                f"unknown aggregation '{aggregation.name}'; "
                f"the aggregations are {_listed(AGGREGATIONS)}",
            )
        return AGGREGATIONS[aggregation.name]

    def _splits(self, node: Einsum, settings: list[Setting] | None) -> tuple[int, ...]:
        parts = _numbers(self.source, settings)
        for index, number in settings or ():
            if index not in node.indices:
                raise self.source.fault(
                    index, f"unknown index '{index}'; the indices are {_listed(node.indices)}"
                )
            fault = node.split_fault(node.indices.index(index), int(number))
            if fault:
                raise self.source.fault(number, fault)
        return tuple(parts.get(index, 1) for index in node.indices)


class _Operands:
    """The distinct operands of one op, and the extents that they give to its indices."""

    def __init__(
        self, source: Source, nodes: list[Input | Einsum], node_numbers: Mapping[str, int]
    ) -> None:
        self.source = source
        self.nodes = nodes
        self.node_numbers = node_numbers
        self.numbers: list[int] = []
        self.indices: list[list[Token]] = []
        self.extents: dict[str, int] = {}
        self._given_by: dict[str, str] = {}  # the tensor that an extent is from

    def resolve(self, expression: Expression) -> Scalar:
        if not isinstance(expression, Tensor):
            arguments = tuple(self.resolve(argument) for argument in expression.arguments)
            return Apply(expression.name, arguments)
        number = self._node_number(expression)
        # Read the same way twice, as in X[i] * X[i], a tensor is one operand.
        for operand, known in enumerate(zip(self.numbers, self.indices, strict=True)):
            if known == (number, expression.indices):
                return operand
        self._bind(expression, self.nodes[number].shape)
        self.numbers.append(number)
        self.indices.append(expression.indices)
        return len(self.numbers) - 1

    def _node_number(self, tensor: Tensor) -> int:
        name = tensor.name
        if name not in self.node_numbers:
            raise self.source.fault(
                name,
                f"unknown tensor '{name}'; so far there are {_listed(self.node_numbers)}",
            )
        number = self.node_numbers[name]
        node, indices = self.nodes[number], tensor.indices
        if len(node.shape) != len(indices):
            raise self.source.fault(
                name, f"'{name}' has {len(node.shape)} dimensions, not {len(indices)}"
            )
        if self.numbers and node.dtype != self.nodes[self.numbers[0]].dtype:
            first = self.nodes[self.numbers[0]]
            raise self.source.fault(
                name, f"'{name}' is {node.dtype}, but '{first.name}' is {first.dtype}"
            )
        return number

    def _bind(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        self._check_letters(tensor.indices)
        for index, extent in zip(tensor.indices, shape, strict=True):
            if self.extents.setdefault(index, extent) != extent:
                raise self.source.fault(
                    index,
                    f"index '{index}' has {extent} elements in '{tensor.name}', "
                    f"but {self.extents[index]} in '{self._given_by[index]}'",
                )
            self._given_by.setdefault(index, tensor.name)

    def check_joined(self, output: list[Token], aggregated: list[Token]) -> None:
        """Every index of the operands is an output or an aggregated one, and no other is."""
        self._check_letters([*output, *aggregated])
        for indices, what in ((output, "output "), (aggregated, "")):
            for index in indices:
                if index not in self.extents:
                    raise self.source.fault(
                        index,
                        f"unknown {what}index '{index}'; "
                        f"the indices of the operands are {_listed(self.extents)}",
                    )
        for index in (index for own in self.indices for index in own):
            if index not in output and index not in aggregated:
                raise self.source.fault(
                    index, f"index '{index}' is neither in the output nor aggregated"
                )

    def _check_letters(self, indices: list[Token]) -> None:
        for place, index in enumerate(indices):
            if len(index) != 1:
                raise self.source.fault(index, f"index '{index}' must be one letter")
            if index in indices[:place]:
                raise self.source.fault(index, f"index '{index}' is here twice")
