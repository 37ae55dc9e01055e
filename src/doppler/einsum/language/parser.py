"""Program text to statements, which still hold the tokens, and so the places, of the text.

docs/einsum.md describes the language; `doppler.einsum.resolver` gives the statements a meaning.
"""

from typing import NamedTuple, TypeAlias

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from doppler.errors import InputError

_LARK = Lark(
    r"""
    start: _NL? "program" NAME _NL (statement _NL)*
    ?statement: parameter | input | op

    parameter: "param" NAME [":" settings]
    input: "input" NAME "[" extents "]" NAME
    extents: (NAME | INT) ("," (NAME | INT))*

    op: tensor "=" [aggregation] expression ["split" settings]
    tensor: NAME "[" indices "]"
    aggregation: NAME "(" indices ")"
    ?expression: product | expression "+" product -> add
    ?product: tensor | product "*" tensor -> mul
    indices: NAME ("," NAME)*
    settings: setting+
    setting: NAME "=" INT

    NAME: /[A-Za-z_][A-Za-z_0-9]*/
    INT: /[0-9]+/
    _NL: /([ \t]*(\#[^\n]*)?\n)+/
    %ignore /[ \t]+/
    """,
    parser="lalr",
)
_SPOKEN = {terminal.name: repr(terminal.pattern.value) for terminal in _LARK.terminals}
_SPOKEN |= {
    "NAME": "a name",
    "INT": "a number",
    "_NL": "the end of the line",
    "$END": "the end of the file",
}

Setting: TypeAlias = tuple[Token, Token]  # name = number


class ParameterStatement(NamedTuple):
    """``param NAME: preset=value ...``."""

    name: Token
    presets: list[Setting] | None


class InputStatement(NamedTuple):
    """``input NAME[extent, ...] dtype``."""

    name: Token
    extents: list[Token]
    dtype: Token


class Tensor(NamedTuple):
    """``NAME[index, ...]``."""

    name: Token
    indices: list[Token]


class Function(NamedTuple):
    """A scalar function of expressions: ``add`` for +, ``mul`` for *."""

    name: str
    arguments: tuple["Expression", ...]


Expression: TypeAlias = Tensor | Function


class Aggregation(NamedTuple):
    """``NAME(index, ...)`` in front of an expression."""

    name: Token
    indices: list[Token]


class OpStatement(NamedTuple):
    """``NAME[index, ...] = [aggregation] expression [split index=parts ...]``."""

    output: Tensor
    aggregation: Aggregation | None
    expression: Expression
    splits: list[Setting] | None


Statement: TypeAlias = ParameterStatement | InputStatement | OpStatement


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
            possible = " or ".join(
                sorted(_SPOKEN[name] for name in error.accepts or error.expected)
            )
            message = f"found {found}, expected {possible}"
        else:
            message = f"found {self._lines[error.line - 1][error.column - 1]!r}"
        return self._fault_at(error.line, error.column, message)

    def _fault_at(self, line: int, column: int, message: str) -> InputError:
        quoted = self._lines[line - 1].strip()
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

    parameter, input, op = ParameterStatement, InputStatement, OpStatement
    tensor, aggregation = Tensor, Aggregation

    def add(self, *arguments: Expression) -> Function:
        return Function("add", arguments)

    def mul(self, *arguments: Expression) -> Function:
        return Function("mul", arguments)

    def _listed(self, *children: object) -> list[object]:
        return list(children)

    start = extents = indices = settings = setting = _listed
