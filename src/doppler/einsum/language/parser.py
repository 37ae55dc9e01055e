"""Parses a program text into statements, which keep the tokens and so their places in the text.

docs/einsum.md describes the language; `language.resolver` interprets the statements.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from doppler.support.errors import InputError

_LARK = Lark(
    r"""
    start: _NL? "program" NAME _NL (statement _NL)*
    ?statement: parameter | input | fill | op | view | repeat | training

    parameter: "param" NAME [":" settings]
    input: input_word NAME "[" [expressions] "]" NAME
    ?!input_word: "input" | "weight"
    fill: "fill" NAME "[" [expressions] "]" NAME values
    values: expression | "lower" expression "else" expression
    repeat: "repeat" expression ":" NAME "=" NAME
    training: TRAINING

    op: output "=" [aggregation] expression ["split" settings]
    aggregation: aggregation_word "(" indices ")"
    ?!aggregation_word: "sum" | "max" | "min" | "prod"

    view: output "=" viewed ["split" settings]
    ?viewed: one_word tensor -> plain_view
        | two_word tensor "," tensor -> plain_view
        | "concat" "(" NAME ")" tensor ("," tensor)* -> concat
        | "select" NAME "[" slices "]" -> select
    ?!one_word: "complex" | "real" | "squeeze" | "cholesky"
    ?!two_word: "solve"
    slices: slice ("," slice)*
    slice: NAME ["=" expression ":" expression]

    output: NAME "[" [axes] "]"
    axes: axis ("," axis)*
    axis: NAME ["=" expression]
    tensor: NAME "[" [indices] "]"
    indices: NAME ("," NAME)*
    settings: setting+
    setting: NAME "=" NUMBER

    expressions: expression ("," expression)*
    ?expression: product | expression (PLUS | MINUS) product -> binary
    ?product: factor | product (TIMES | OVER) factor -> binary
    ?factor: atom | MINUS factor -> negative
    ?atom: NUMBER | NAME | tensor | call | "(" expression ")"
    call: NAME "(" expressions ")"

    TRAINING: "training"
    PLUS: "+"
    MINUS: "-"
    TIMES: "*"
    OVER: "/"
    NAME: /[A-Za-z_][A-Za-z_0-9]*/
    NUMBER: /[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/
    _NL: /([ \t]*(\#[^\n]*)?\n)+/
    %ignore /[ \t]+/
    """,
    parser="lalr",
)
_SPOKEN = {terminal.name: repr(terminal.pattern.value) for terminal in _LARK.terminals}
_SPOKEN |= {
    "NAME": "a name",
    "NUMBER": "a number",
    "_NL": "the end of the line",
    "$END": "the end of the file",
}
_LONGEST = 400  # characters of a quoted line, or of a message about it
_AGGREGATIONS = "sum, max, min and prod"
_FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}

Setting: TypeAlias = tuple[Token, Token]  # name = number


class ParameterStatement(NamedTuple):
    """``param NAME: preset=value ...``.

    Attributes:
        name: of the parameter.
        presets: values by preset, or None.
    """

    name: Token
    presets: list[Setting] | None


class TensorAccess(NamedTuple):
    """``NAME[index, ...]``.

    Attributes:
        name: of the tensor.
        indices: one per dimension.
    """

    name: Token
    indices: list[Token]


class Function(NamedTuple):
    """A scalar function of expressions.

    Attributes:
        name: of the function.
        arguments: expressions.
        place: its name or operator in the text.
    """

    name: str
    arguments: list["Expression"]
    place: Token


# A token is a number or the name of a constant.
Expression: TypeAlias = Token | TensorAccess | Function


class InputStatement(NamedTuple):
    """``input NAME[extent, ...] dtype``, or ``weight`` in place of ``input``.

    Attributes:
        word: ``input`` or ``weight``.
        name: of the tensor.
        extents: of its dimensions.
        dtype: of the tensor.
    """

    word: Token
    name: Token
    extents: list[Expression]
    dtype: Token


class FillStatement(NamedTuple):
    """``fill NAME[extent, ...] dtype value``, or ``lower value else value`` in place of the value.

    Attributes:
        name: of the tensor.
        extents: of its dimensions.
        dtype: of the tensor.
        values: one, or that of the lower triangle and the other one.
    """

    name: Token
    extents: list[Expression]
    dtype: Token
    values: list[Expression]


class Output(NamedTuple):
    """``NAME[index, index=extent, ...]``.

    Attributes:
        name: of the tensor.
        indices: one per dimension.
        extents: by index, of the indices that have one.
    """

    name: Token
    indices: list[Token]
    extents: dict[Token, Expression]


class Aggregation(NamedTuple):
    """``WORD(index, ...)`` in front of an expression.

    Attributes:
        word: sum, max, min or prod.
        indices: that are aggregated.
    """

    word: Token
    indices: list[Token]


class OpStatement(NamedTuple):
    """``OUTPUT = [aggregation] expression [split index=parts ...]``.

    Attributes:
        output: tensor that is defined.
        aggregation: if there is one.
        expression: of the operands.
        splits: parts by index, or None.
    """

    output: Output
    aggregation: Aggregation | None
    expression: Expression
    splits: list[Setting] | None


Range: TypeAlias = tuple[Token, Expression, Expression]  # index = start:stop


class Viewed(NamedTuple):
    """``WORD tensor, ...``, the right side of a view.

    Attributes:
        word: kind of the view.
        tensors: that it reads.
        index: of ``concat``.
        ranges: of ``select``.
    """

    word: str
    tensors: list[TensorAccess]
    index: Token | None = None
    ranges: Sequence[Range] = ()


class ViewStatement(NamedTuple):
    """``OUTPUT = viewed [split index=parts ...]``.

    Attributes:
        output: tensor that is defined.
        viewed: right side.
        splits: parts by index, or None.
    """

    output: Output
    viewed: Viewed
    splits: list[Setting] | None


class RepeatStatement(NamedTuple):
    """``repeat TIMES: INTO = OUT``.

    Attributes:
        times: number of layers.
        into: input of a layer.
        out: tensor of the layer before that replaces it.
    """

    times: Expression
    into: Token
    out: Token


class TrainingStatement(NamedTuple):
    """``training``, the beginning of the training section.

    Attributes:
        word: the keyword.
    """

    word: Token


Statement: TypeAlias = (
    ParameterStatement
    | InputStatement
    | FillStatement
    | OpStatement
    | ViewStatement
    | RepeatStatement
    | TrainingStatement
)


class Source:
    """A program text, which makes error messages that say where something is wrong.

    Args:
        text: of the program.
        file: name for messages.

    Attributes:
        file: name for messages.
        text: of the program.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.text = text.rstrip() + "\n"  # the grammar ends every statement with its line
        self._lines = self.text.split("\n")

    def fault(self, token: Token, message: str) -> InputError:
        """Make the error ``file:line:column: message, in 'the line'``.

        Args:
            token: that is wrong.
            message: what is wrong.
        """
        return self._fault_at(token.line or 1, token.column or 1, message)

    def syntax_fault(self, error: UnexpectedInput) -> InputError:
        """Make the error for a text that does not follow the grammar: what is found and expected.

        Args:
            error: of the parser.
        """
        if isinstance(error, UnexpectedToken):
            kind = error.token.type
            found = _SPOKEN[kind] if kind in ("_NL", "$END") else repr(str(error.token))
            possible = set(error.accepts or error.expected)
            # Every word that begins an expression would be a long list.
            named = {"an expression"} if {"NAME", "NUMBER"} <= possible else set()
            named |= {_SPOKEN[name] for name in (() if named else possible)}
            message = f"found {found}, expected {' or '.join(sorted(named))}"
            if kind == "NAME" and error.token_history and error.token_history[-1] == ")":
                message = (
                    f"found {found} behind ')': only {_AGGREGATIONS} stand before what they take"
                )
        else:
            message = f"found {self._lines[error.line - 1][error.column - 1]!r}"
        return self._fault_at(error.line, error.column, message)

    def _fault_at(self, line: int, column: int, message: str) -> InputError:
        quoted = self._lines[line - 1].strip()
        message, quoted = (
            one if len(one) <= _LONGEST else f"{one[:_LONGEST]}..." for one in (message, quoted)
        )
        return InputError(f"{self.file}:{line}:{column}: {message}, in {quoted!r}")


class Syntax(NamedTuple):
    """A text that follows the grammar.

    Attributes:
        source: of the program.
        name: of the program.
        statements: in order.
    """

    source: Source
    name: Token
    statements: tuple[Statement, ...]


def parse(text: str, file: str) -> Syntax:
    """Parse a text into the statements of a program.

    Args:
        text: of the program.
        file: name for messages.

    Raises:
        InputError: ``file:line:column: what is wrong, in 'the line'``.
    """
    source = Source(text, file)
    try:
        tree = _LARK.parse(source.text)
    except UnexpectedInput as error:
        raise source.syntax_fault(error) from None
    name, *statements = _ToStatements().transform(tree)
    return Syntax(source, name, tuple(statements))


@v_args(inline=True)
class _ToStatements(Transformer):
    """Turns lark's tree into statements, bottom up: one entry per rule or alias of the grammar."""

    parameter, op, view = ParameterStatement, OpStatement, ViewStatement
    repeat, training = RepeatStatement, TrainingStatement
    aggregation = Aggregation

    def input(
        self, word: Token, name: Token, extents: list[Expression] | None, dtype: Token
    ) -> InputStatement:
        return InputStatement(word, name, extents or [], dtype)

    def fill(
        self, name: Token, extents: list[Expression] | None, dtype: Token, values: list[Expression]
    ) -> FillStatement:
        return FillStatement(name, extents or [], dtype, values)

    def output(self, name: Token, axes: list[tuple[Token, Expression | None]] | None) -> Output:
        extents = {index: extent for index, extent in axes or () if extent is not None}
        return Output(name, [index for index, _ in axes or ()], extents)

    def tensor(self, name: Token, indices: list[Token] | None) -> TensorAccess:
        return TensorAccess(name, indices or [])

    def plain_view(self, word: Token, *tensors: TensorAccess) -> Viewed:
        return Viewed(str(word), list(tensors))

    def concat(self, index: Token, *tensors: TensorAccess) -> Viewed:
        return Viewed("concat", list(tensors), index=index)

    def select(self, name: Token, slices: list[tuple[Token, Expression, Expression]]) -> Viewed:
        ranges = [one for one in slices if one[1] is not None]
        return Viewed("select", [TensorAccess(name, [one[0] for one in slices])], ranges=ranges)

    def binary(self, left: Expression, operator: Token, right: Expression) -> Function:
        return Function(_FUNCTIONS[operator], [left, right], operator)

    def negative(self, operator: Token, operand: Expression) -> Function:
        return Function("neg", [operand], operator)

    def call(self, name: Token, arguments: list[Expression]) -> Function:
        return Function(str(name), arguments, name)

    def _listed(self, *children: object) -> list[object]:
        return list(children)

    start = expressions = values = indices = settings = setting = _listed
    axes = axis = slices = slice = _listed
