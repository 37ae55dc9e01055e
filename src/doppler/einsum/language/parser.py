"""Program text to statements, which still hold the tokens, and so the places, of the text.

docs/einsum.md describes the language; `language.resolver` gives the statements a meaning.
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
_LONGEST = 400  # characters of a line that is quoted, or of what is said of it
_AGGREGATIONS = "sum, max, min and prod"
_FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}

Setting: TypeAlias = tuple[Token, Token]  # name = number


class ParameterStatement(NamedTuple):
    """``param NAME: preset=value ...``."""

    name: Token
    presets: list[Setting] | None


class TensorAccess(NamedTuple):
    """``NAME[index, ...]``."""

    name: Token
    indices: list[Token]


class Function(NamedTuple):
    """A scalar function of expressions; ``place`` is its name or operator in the text."""

    name: str
    arguments: list["Expression"]
    place: Token


# A token is a number or the name of a constant.
Expression: TypeAlias = Token | TensorAccess | Function


class InputStatement(NamedTuple):
    """``input NAME[extent, ...] dtype``, or ``weight`` in the place of ``input``."""

    word: Token
    name: Token
    extents: list[Expression]
    dtype: Token


class FillStatement(NamedTuple):
    """``fill NAME[extent, ...] dtype value``, or ``lower value else value``."""

    name: Token
    extents: list[Expression]
    dtype: Token
    values: list[Expression]


class Output(NamedTuple):
    """``NAME[index, index=extent, ...]``: extents by index, of those that have one."""

    name: Token
    indices: list[Token]
    extents: dict[Token, Expression]


class Aggregation(NamedTuple):
    """``WORD(index, ...)`` in front of an expression."""

    word: Token
    indices: list[Token]


class OpStatement(NamedTuple):
    """``OUTPUT = [aggregation] expression [split index=parts ...]``."""

    output: Output
    aggregation: Aggregation | None
    expression: Expression
    splits: list[Setting] | None


Range: TypeAlias = tuple[Token, Expression, Expression]  # index = start:stop


class Viewed(NamedTuple):
    """``WORD tensor, ...``: index, that of ``concat``; ranges, those of ``select``."""

    word: str
    tensors: list[TensorAccess]
    index: Token | None = None
    ranges: Sequence[Range] = ()


class ViewStatement(NamedTuple):
    """``OUTPUT = viewed [split index=parts ...]``."""

    output: Output
    viewed: Viewed
    splits: list[Setting] | None


class RepeatStatement(NamedTuple):
    """``repeat TIMES: INTO = OUT``."""

    times: Expression
    into: Token
    out: Token


class TrainingStatement(NamedTuple):
    """``training``."""

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
    """A program text that knows how to say where something is wrong."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.text = text.rstrip() + "\n"  # the grammar ends every statement with its line
        self._lines = self.text.split("\n")

    def fault(self, token: Token, message: str) -> InputError:
        """``file:line:column: message, in 'the line'``."""
        return self._fault_at(token.line or 1, token.column or 1, message)

    def syntax_fault(self, error: UnexpectedInput) -> InputError:
        """The same for what does not follow the grammar: what was found and what could be there."""
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
    """A text that follows the grammar."""

    source: Source
    name: Token
    statements: tuple[Statement, ...]


def parse(text: str, file: str) -> Syntax:
    """Split a text into the statements of a program.

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
    """From lark's tree, bottom up: one entry per rule or alias of the grammar."""

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
