"""DOT, the language of Graphviz: reads a text into a networkx graph with all its attributes.

Graphs are read as Graphviz reads them, which keeps a state by name: a subgraph that is opened again
keeps its nodes and defaults, and an edge of a strict graph, or of an equal ``key``, is the existing
edge. Attributes are texts; an empty text means no attribute. Ports are ignored. If a file has
several graphs, the first one is read.

Source: Graphviz, lib/cgraph: scan.l and grammar.y for the language, attr.c, node.c and edge.c for
the effects of statements. tests/extensions/formats/test_dot.py compares with Graphviz itself.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import networkx as nx

from doppler.support.errors import InputError

_TOKEN = re.compile(
    r"""
    (?P<skip> [ \t\r\n]+ | //[^\n]* | \#[^\n]* | /\*[\s\S]*?\*/ )
    | (?P<arrow> -[->] )
    | (?P<word> [A-Za-z_\x80-\U0010ffff][A-Za-z_0-9\x80-\U0010ffff]* )
    | (?P<number> -?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?) )
    | (?P<quoted> "(?:[^"\\]|\\[\s\S])*" )
    | (?P<sign> [{}\[\];,:=+] )
    | (?P<html> < )
    """,
    re.VERBOSE,
)
_KEYWORDS = ("strict", "graph", "digraph", "node", "edge", "subgraph")
_NAMES = ("word", "number", "quoted", "html")
_END = "end"
_DEEPEST = 200  # nested subgraphs
_MOST_EDGES = 1_000_000  # in one statement
# Limits for a whole file, because a few lines can create any number of edges and attributes.
_MOST_EDGES_IN_ALL, _MOST_ATTRIBUTES = 5_000_000, 5_000_000


class _Token(NamedTuple):
    """A token.

    Attributes:
        kind: group of `_TOKEN`, the sign itself, or a keyword.
        text: as written.
        at: position in the text.
    """

    kind: str
    text: str
    at: int


class _NotDotError(Exception):
    """The text is not DOT from a position on."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _Scope:
    """A graph or subgraph: its nodes, and the default attributes of new nodes and edges."""

    def __init__(self, parent: "_Scope | None" = None) -> None:
        self.parent = parent
        self.nodes: dict[str, None] = {}
        # The edges between two nodes, by their key or, without a key, by their number.
        self.edges: dict[tuple[str, str], dict[str | int, dict[str, str]]] = {}
        self.subgraphs: dict[str, _Scope] = {}
        self._own: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}

    def set_defaults(self, kind: str, attributes: dict[str, str]) -> None:
        self._own[kind].update(attributes)

    def defaults(self, kind: str) -> dict[str, str]:
        """Return the defaults, with the present ones of the enclosing graphs."""
        outer = {} if self.parent is None else self.parent.defaults(kind)
        return {**outer, **self._own[kind]}

    def with_outer(self) -> "Iterator[_Scope]":
        """Yield this graph and those around it, which contain everything that it contains."""
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


def parse_dot(text: str, path: Path) -> tuple[nx.MultiDiGraph, list[str]]:
    """Read the content of a DOT file.

    Args:
        text: of the file.
        path: of the file, for messages and as the name of a graph without one.

    Returns:
        The graph, whose edge keys are the edges' numbers, and a list in words of what was not read.

    Raises:
        InputError: names the file and the line.
    """
    try:
        reader = _Reader(text, path)
        graph = reader.read_graph()
        others = 0
        while not reader.is_at_end():
            reader.read_graph()
            others += 1
    except _NotDotError as error:
        if not text[error.at :].strip():
            raise InputError(f"{path}: not DOT: it ends early") from None
        line = text.count("\n", 0, error.at) + 1
        found = text[error.at : error.at + 20]
        raise InputError(f"{path}:{line}: not DOT, from {found!r} on") from None
    graphs = "graph" if others == 1 else "graphs"
    return graph, [f"{others} {graphs} after the first"] if others else []


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _NotDotError(at)
        kind, found = match.lastgroup, match[0]
        if kind == "html":
            found = _html(text, at)
        if kind == "word" and found.lower() in _KEYWORDS:
            kind = found.lower()
        if kind != "skip":
            yield _Token(found if kind == "sign" else kind, found, at)
        at += len(found)
    yield _Token(_END, "", at)


def _html(text: str, begin: int) -> str:
    """Return the text from a ``<`` to the ``>`` that closes it."""
    depth = 0
    for match in re.compile("[<>]").finditer(text, begin):
        depth += 1 if match[0] == "<" else -1
        if depth == 0:
            return text[begin : match.end()]
    raise _NotDotError(len(text))


def _unquoted(text: str) -> str:
    """Resolve the escapes that DOT knows: of a quote and of a line break."""
    meaning = {'\\"': '"', "\\\n": "", "\\\\": "\\\\"}
    return re.sub(r'\\[\\"\n]', lambda found: meaning[found[0]], text[1:-1])


class _Reader:
    """Reads one graph after another, and executes the statements as it reads them."""

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._begin(is_strict=False, name="")

    def _begin(self, *, is_strict: bool, name: str) -> None:
        self._is_strict = is_strict
        self._graph = nx.MultiDiGraph(name=name)
        self._num_edges = self._num_attributes = 0

    # --- Language ---------------------------------------------------------------------------------

    def is_at_end(self) -> bool:
        return self._next.kind == _END

    def read_graph(self) -> nx.MultiDiGraph:
        is_strict = self._accept("strict") is not None
        kind = self._accept("graph") or self._expect("digraph")
        if kind.kind == "graph":
            raise InputError(
                f"{self._path}: an undirected graph: a dataflow graph must be a digraph"
            )
        name = self._name() if self._next.kind in _NAMES else self._path.stem
        self._begin(is_strict=is_strict, name=name)
        root = _Scope()
        self._body(root, 0)
        attributes = root.defaults("graph")
        self._graph.graph.update(_without_empty({**attributes, "name": name}))
        for _, data in self._graph.nodes(data=True):
            _drop_empty(data)
        for *_, data in self._graph.edges(data=True):
            _drop_empty(data)
        return self._graph

    def _advance(self) -> _Token:
        token = self._next
        self._next = next(self._tokens, token)
        return token

    def _accept(self, kind: str) -> _Token | None:
        return self._advance() if self._next.kind == kind else None

    def _expect(self, kind: str) -> _Token:
        if self._next.kind != kind:
            raise _NotDotError(self._next.at)
        return self._advance()

    def _name(self) -> str:
        token = self._next
        if token.kind not in _NAMES:
            raise _NotDotError(token.at)
        self._advance()
        if token.kind in ("word", "number"):
            return token.text
        parts = [token]
        while self._accept("+"):
            if self._next.kind not in ("quoted", "html"):
                raise _NotDotError(self._next.at)
            parts.append(self._advance())
        return "".join(
            _unquoted(one.text) if one.kind == "quoted" else one.text[1:-1] for one in parts
        )

    def _body(self, scope: _Scope, depth: int) -> None:
        if depth > _DEEPEST:
            raise InputError(f"{self._path}: subgraphs are nested too deeply")
        self._expect("{")
        while not self._accept("}"):
            self._statement(scope, depth)
            self._accept(";")

    def _statement(self, scope: _Scope, depth: int) -> None:
        if (kind := self._next.kind) in ("graph", "node", "edge"):
            self._advance()
            attributes = self._attributes(required=True)
            if kind == "edge":
                attributes.pop("key", None)
            scope.set_defaults(kind, attributes)
            return
        # Nodes of subgraphs as they are at the end of the statement, which may open one again.
        ends: list[Collection[str]] = []
        if self._next.kind in _NAMES:
            name = self._name()
            if self._accept("="):
                scope.set_defaults("graph", {name: self._name()})
                return
            ends.append(self._node_list(name, scope))
        else:
            ends.append(self._subgraph(scope, depth))
            name = None
        while self._next.kind == "arrow":
            if self._next.text != "->":
                raise _NotDotError(self._next.at)
            self._advance()
            if self._next.kind in _NAMES:
                ends.append(self._node_list(self._name(), scope))
            else:
                ends.append(self._subgraph(scope, depth))
        attributes = self._attributes()
        if len(ends) > 1:
            self._join_all(ends, attributes, scope)
        elif name is not None:
            for each in ends[0]:
                self._graph.nodes[each].update(attributes)

    def _node_list(self, first: str, scope: _Scope) -> list[str]:
        names = [first]
        self._port()
        while self._accept(","):
            names.append(self._name())
            self._port()
        for name in names:
            if name not in self._graph:
                self._graph.add_node(name)
                self._start(self._graph.nodes[name], scope.defaults("node"))
            for each in scope.with_outer():
                each.nodes[name] = None
        return names

    def _port(self) -> None:
        for _ in range(2):
            if self._accept(":"):
                self._name()

    def _subgraph(self, scope: _Scope, depth: int) -> dict[str, None]:
        name = None
        if self._accept("subgraph") and self._next.kind != "{":
            name = self._name()
        inner = scope.subgraphs.get(name) if name is not None else None
        if inner is None:
            inner = _Scope(scope)
            if name is not None:
                scope.subgraphs[name] = inner
        self._body(inner, depth + 1)
        return inner.nodes

    def _attributes(self, *, required: bool = False) -> dict[str, str]:
        found: dict[str, str] = {}
        if required and self._next.kind != "[":
            raise _NotDotError(self._next.at)
        while self._accept("["):
            while not self._accept("]"):
                name = self._name()
                self._expect("=")
                found[name] = self._name()
                if not self._accept(","):
                    self._accept(";")
        return found

    # --- Edges ------------------------------------------------------------------------------------

    def _join_all(
        self, ends: Sequence[Collection[str]], attributes: dict[str, str], scope: _Scope
    ) -> None:
        key = attributes.pop("key", None)
        for sources, targets in pairwise(ends):
            if not sources or not targets:
                continue
            sources, targets = list(sources), list(targets)
            if len(sources) * len(targets) > _MOST_EDGES:
                raise InputError(f"{self._path}: a statement of more than {_MOST_EDGES:,} edges")
            for u, v in product(sources, targets):
                self._join(u, v, key, attributes, scope)

    def _start(self, attributes: dict[str, str], defaults: dict[str, str]) -> None:
        """Give a new node or edge its default attributes."""
        attributes.update(defaults)
        self._num_attributes += len(defaults)
        if self._num_attributes > _MOST_ATTRIBUTES or self._num_edges > _MOST_EDGES_IN_ALL:
            raise InputError(
                f"{self._path}: more than {_MOST_EDGES_IN_ALL:,} edges, or default attributes"
            )

    def _join(
        self, u: str, v: str, key: str | None, attributes: dict[str, str], scope: _Scope
    ) -> None:
        *_, root = scopes = list(scope.with_outer())
        name: str | int | None = key
        found = None
        if key is None and self._is_strict and len(root.edges.get((u, v), {})) > 1:
            raise InputError(
                f"{self._path}: edge {u!r} -> {v!r}: the strict graph has several, with keys: a "
                "statement without a key may mean any of them"
            )
        for each in (scope, root):
            there = each.edges.get((u, v), {})
            if key is None and self._is_strict and there and found is None:
                name, found = next(iter(there.items()))
            elif key is not None and found is None:
                found = there.get(key)
        if found is None:
            if self._is_strict and (u, v) in scope.edges:
                return  # like Graphviz: no second edge, and the attributes of this one are ignored
            number = self._num_edges
            self._num_edges += 1
            self._graph.add_edge(u, v, key=number)
            found = self._graph.edges[u, v, number]
            self._start(found, scope.defaults("edge"))
            name = number if key is None else key
        assert name is not None
        if self._is_strict or key is not None:
            for each in scopes:
                each.edges.setdefault((u, v), {})[name] = found
        found.update(attributes)


def _drop_empty(attributes: dict[str, str]) -> None:
    for name in [name for name, value in attributes.items() if not value]:
        del attributes[name]


def _without_empty(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}
