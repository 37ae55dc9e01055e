"""The small changes that a file of Python can be put to: one comparison, one sign, one statement.

What no test could or should notice is left alone: annotations, docstrings, the texts of messages,
what is raised, printed or logged, assertions, decorators, imports and `__all__`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_OPPOSITES |= {"argmin": "argmax", "argmax": "argmin"}
# Calls that say something to people, or to the type checker.
_TELLING = {"print", "debug", "info", "warning", "InputError", "cast", "isinstance", "TypeVar"}
_TELLING |= {"add_argument", "mark_flag", "warn"}


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of a file: its bytes from ``begin`` to ``end`` are ``new`` instead of ``old``."""

    path: str
    line: int
    begin: int
    end: int
    kind: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The file's text with the change; ValueError where the file is another by now."""
        data = source.encode()
        if data[self.begin : self.end] != self.old.encode():
            raise ValueError(f"{self.path}:{self.line} no longer reads {self.old!r}")
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()


def mutations(path: str, source: str) -> Iterator[Mutation]:
    """All changes of a file that this knows."""
    data = source.encode()
    starts = [0, *accumulate(len(line) for line in data.splitlines(keepends=True))]
    tree = ast.parse(source)
    conditions = set(_conditions(tree))
    for node in _mutable(tree):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changes = [*_changes(node)]
        if node in conditions:
            changes.append(("condition", f"not ({ast.unparse(node)})"))
        for kind, new in changes:
            yield Mutation(
                path=path,
                line=node.lineno,
                begin=begin,
                end=end,
                kind=kind,
                old=data[begin:end].decode(),
                new=f"({new})" if isinstance(node, ast.expr) else new,
            )


def _conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """What decides, where it is no comparison: these are turned round by themselves."""
    for node in ast.walk(tree):
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        yield from (one for one in tests if isinstance(one, ast.Name | ast.Attribute | ast.Call))


def _mutable(node: ast.AST, constructor: bool = False) -> Iterator[Any]:
    """The nodes below, less what is left alone."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.pattern) or (isinstance(node, ast.Call) and _name(node) in _TELLING):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return
    if isinstance(node, ast.expr | ast.stmt):
        sets_up = constructor and isinstance(node, ast.Assign)  # without it nothing would run
        if not sets_up:
            yield node
    if isinstance(node, ast.FunctionDef):
        constructor = node.name in ("__init__", "__post_init__")
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "targets", "target"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutable(child, constructor)


def _changes(node: Any) -> Iterator[tuple[str, str]]:
    """Kinds and texts of what may stand in place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=[other()])
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _of_text(node):
            yield "arithmetic", _with(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield "no not", ast.unparse(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", ast.unparse(node.operand)
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield from (("constant", str(value + 1)), ("constant", str(value - 1)))
        case ast.Constant(value=float(value)):
            yield "constant", str(2 * value or 1.0)
        case ast.AugAssign(op=op):
            if type(op) in _ARITHMETIC and not _of_text(node):
                yield "arithmetic", _with(node, op=_ARITHMETIC[type(op)]())
            yield "dropped", "pass"
        case ast.Expr(value=ast.Call() as call) if _name(call) not in _TELLING:
            yield "dropped", "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "dropped", "pass"
        case ast.Continue() | ast.Break():
            yield "dropped", "pass"
        case ast.Call(func=func):
            yield from _other_calls(node, func)


def _other_calls(node: ast.Call, func: ast.expr) -> Iterator[tuple[str, str]]:
    one, two = [*node.args, None, None][:2]
    if one and two and not isinstance(one, ast.Starred) and not isinstance(two, ast.Starred):
        if ast.unparse(one) != ast.unparse(two):
            yield "arguments", _with(node, args=[two, one, *node.args[2:]])
    if other := _OPPOSITES.get(_name(node)):
        if isinstance(func, ast.Attribute):
            yield "opposite", _with(node, func=_same(func, attr=other))
        else:
            yield "opposite", _with(node, func=ast.Name(id=other, ctx=ast.Load()))


def _same(node: Any, **changed: Any) -> Any:
    return type(node)(**{**dict(ast.iter_fields(node)), **changed})


def _with(node: Any, **changed: Any) -> str:
    return ast.unparse(ast.fix_missing_locations(_same(node, **changed)))


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _of_text(node: ast.BinOp | ast.AugAssign) -> bool:
    """Texts, lists and sets are added, too: another operator only raises."""
    kinds = ast.JoinedStr | ast.List | ast.Set | ast.ListComp | ast.Tuple
    operands = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
    return any(
        isinstance(one, kinds) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in operands
    )
