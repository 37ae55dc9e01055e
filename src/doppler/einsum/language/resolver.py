"""Resolves statements to a Program: names to nodes, indices to extents, parameters to values."""

from collections.abc import Iterable, Mapping

from doppler.einsum.language.ops import resolve_op
from doppler.einsum.language.parser import (
    FillStatement,
    InputStatement,
    OpStatement,
    ParameterStatement,
    RepeatStatement,
    Source,
    Statement,
    Syntax,
    TrainingStatement,
    ViewStatement,
    parse,
)
from doppler.einsum.language.repetition import repeat_layers
from doppler.einsum.language.scope import Constants, Scope, holds, listed, positive_integers
from doppler.einsum.language.views import resolve_view
from doppler.einsum.program import Fill, Input, Program, insert_formations
from doppler.support.errors import InputError


def parse_program(
    text: str,
    *,
    file: str = "<program>",
    preset: str = "paper",
    params: Mapping[str, int] | None = None,
    training: bool = False,
) -> Program:
    """Read a program, with the values of its parameters.

    Args:
        text: the program, in the language of docs/einsum.md.
        file: name of the text for messages.
        preset: name of the declared values that parameters take.
        params: values by parameter name, which replace those of the preset.
        training: whether the section after the line ``training`` is part of the program, with its
            last op as the loss.

    Raises:
        InputError: ``file:line:column: what is wrong, in 'the line'``. If ``preset``, ``params`` or
            ``training`` are wrong, the message has only ``file:``, because there is no place in the
            text.
    """
    try:
        return _program(parse(text, file), preset, params or {}, training)
    except RecursionError:
        raise InputError(f"{file}: an expression is nested too deeply") from None


def _program(syntax: Syntax, preset: str, params: Mapping[str, int], training: bool) -> Program:
    source, statements = syntax.source, _chosen(syntax, training)
    declared = [one for one in statements if isinstance(one, ParameterStatement)]
    values = _parameter_values(source, declared, preset, params)
    scope = Scope(source, Constants(source, values))
    for statement in statements:
        _add(scope, statement)
    _check_use(syntax, statements, scope)
    nodes, finished = insert_formations(scope.nodes)
    return Program(
        name=str(syntax.name),
        parameters=values,
        nodes=nodes,
        given_splits=scope.splits,
        loss=finished[_loss(statements, scope)] if training else None,
    )


def _chosen(syntax: Syntax, training: bool) -> list[Statement]:
    """Return the statements of the program, with those of the training section if requested."""
    words = [one.word for one in syntax.statements if isinstance(one, TrainingStatement)]
    if len(words) > 1:
        raise syntax.source.fault(words[1], "'training' appears twice")
    if training and not words:
        raise InputError(f"{syntax.source.file}: program '{syntax.name}' has no section 'training'")
    if training or not words:
        return list(syntax.statements)
    before = [isinstance(one, TrainingStatement) for one in syntax.statements].index(True)
    return list(syntax.statements[:before])


def _add(scope: Scope, statement: Statement) -> None:
    if isinstance(statement, InputStatement):
        node = Input(
            name=str(statement.name),
            dtype=scope.dtype(statement.dtype),
            shape=tuple(scope.constants.extent(one) for one in statement.extents),
            is_weight=statement.word == "weight",
        )
        scope.add(statement.name, node)
    elif isinstance(statement, FillStatement):
        scope.add(statement.name, _fill(scope, statement))
    elif isinstance(statement, OpStatement):
        scope.add(statement.output.name, resolve_op(scope, statement), statement.splits)
    elif isinstance(statement, ViewStatement):
        scope.add(statement.output.name, resolve_view(scope, statement), statement.splits)
    elif isinstance(statement, RepeatStatement):
        repeat_layers(scope, statement)


def _fill(scope: Scope, statement: FillStatement) -> Fill:
    dtype = scope.dtype(statement.dtype)
    values = [scope.constants.value(one) for one in statement.values]
    for value in values:
        if not holds(dtype, value):
            raise scope.source.fault(statement.dtype, f"{dtype} has no number {value}")
    below, *above = map(float, values)
    if above and len(statement.extents) < 2:
        raise scope.source.fault(
            statement.name, f"'{statement.name}' has no lower triangle: it takes 2 dimensions"
        )
    return Fill(
        name=str(statement.name),
        dtype=dtype,
        shape=tuple(scope.constants.extent(one) for one in statement.extents),
        below=below,
        above=above[0] if above else None,
    )


def _check_use(syntax: Syntax, statements: Iterable[Statement], scope: Scope) -> None:
    """Check that something is computed, and that every input is read."""
    read = {operand for node in scope.nodes for operand in node.operands}
    if not any(isinstance(one, OpStatement | ViewStatement) for one in statements):
        raise syntax.source.fault(syntax.name, f"program '{syntax.name}' has no ops")
    for statement in statements:
        if isinstance(statement, InputStatement) and scope.numbers[statement.name] not in read:
            raise syntax.source.fault(
                statement.name, f"{statement.word} '{statement.name}' is never read"
            )


def _loss(statements: list[Statement], scope: Scope) -> int:
    """Return the number of the last op, which must have no dimensions."""
    last = statements[-1]
    if isinstance(last, TrainingStatement):
        raise scope.source.fault(last.word, "section 'training' has no loss")
    if isinstance(last, RepeatStatement):
        name = last.out
    else:
        name = last.output.name if isinstance(last, OpStatement | ViewStatement) else last.name
    if isinstance(last, OpStatement) and not last.output.indices:
        return scope.numbers[name]
    raise scope.source.fault(
        name, f"section 'training' ends with the loss, an op without dimensions, not with '{name}'"
    )


def _parameter_values(
    source: Source, declared: list[ParameterStatement], preset: str, params: Mapping[str, int]
) -> dict[str, int]:
    own_presets: dict[str, dict[str, int]] = {}
    for parameter in declared:
        if parameter.name in own_presets:
            raise source.fault(parameter.name, f"parameter '{parameter.name}' is declared twice")
        own_presets[str(parameter.name)] = positive_integers(source, parameter.presets)
    _check_choices(source.file, own_presets, preset, params)
    for parameter in declared:
        own = own_presets[parameter.name]
        if parameter.name not in params and preset not in own:
            raise source.fault(
                parameter.name,
                f"parameter '{parameter.name}' has no value for preset {preset!r}; "
                f"its presets are {listed(own)}",
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
        raise InputError(f"{file}: unknown preset {preset!r}; the presets are {listed(presets)}")
    for name, value in params.items():
        if name not in own_presets:
            raise InputError(
                f"{file}: unknown parameter {name!r}; the parameters are {listed(own_presets)}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{file}: parameter {name!r} is {value!r}, not a positive integer")
