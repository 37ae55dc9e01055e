"""DOT, the language of Graphviz: text to a networkx graph with all its attributes.

Source: "The DOT language", Graphviz documentation. Attributes are texts. Ports are ignored, and
subgraphs are no more than their nodes.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from doppler.support.errors import InputError

_GRAMMAR = r"""
    start: STRICT? (DIGRAPH | GRAPH) name? "{" statements "}"
    statements: (_statement ";"?)*
    _statement: nodes | edges | defaults | setting | subgraph
    nodes: node attributes?
    edges: _end (ARROW _end)+ attributes?
    _end: node | subgraph
    defaults: (GRAPH | NODE | EDGE) attributes
    setting: name "=" name
    subgraph: (SUBGRAPH name?)? "{" statements "}"
    node: name (":" name)~0..2
    attributes: ("[" (pair ("," | ";")?)* "]")+
    pair: name ("=" name)?
    name: WORD | NUMBER | HTML | QUOTED ("+" QUOTED)*

    STRICT.2: /strict\b/i
    DIGRAPH.2: /digraph\b/i
    GRAPH.2: /graph\b/i
    SUBGRAPH.2: /subgraph\b/i
    NODE.2: /node\b/i
    EDGE.2: /edge\b/i
    ARROW: "->" | "--"
    WORD: /[A-Za-z_\x80-\U0010ffff][A-Za-z_0-9\x80-\U0010ffff]*/
    NUMBER: /-?(\.[0-9]+|[0-9]+(\.[0-9]*)?)/
    QUOTED: /"([^"\\]|\\[\s\S])*"/
    HTML: /<[^<>]*>/
    %ignore /\s+/
    %ignore /\/\/[^\n]*/
    %ignore /\/\*[\s\S]*?\*\//
    %ignore /^#[^\n]*/m
"""
_DEEPEST = 50  # subgraph in a subgraph
_MOST_EDGES = 1_000_000  # of one statement


class _Nodes(NamedTuple):
    """A statement: nodes or subgraphs, from each to the next an edge."""

    ends: list[Any]
    attributes: dict[str, str]


class _Subgraph(NamedTuple):
    statements: list[Any]


class _Defaults(NamedTuple):
    """A statement: attributes of what follows; `kind` is graph, node or edge."""

    kind: str
    attributes: dict[str, str]


@cache
def _parser() -> Any:
    """Made when the first DOT file is read; statements come without a tree, however deep."""
    from lark import Lark, Transformer

    class Statements(Transformer):
        def name(self, tokens: Sequence[Any]) -> str:
            return "".join(_unquoted(token) for token in tokens)

        def pair(self, names: Sequence[str]) -> tuple[str, str]:
            return names[0], names[1] if len(names) > 1 else "true"

        def attributes(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
            return dict(pairs)

        def node(self, names: Sequence[str]) -> str:
            return names[0]

        def nodes(self, parts: Sequence[Any]) -> _Nodes:
            return _Nodes([parts[0]], parts[1] if len(parts) > 1 else {})

        def edges(self, parts: Sequence[Any]) -> _Nodes:
            last = parts[-1]
            ends = [one for one in parts[::2] if not isinstance(one, dict)]
            return _Nodes(ends, last if isinstance(last, dict) else {})

        def subgraph(self, parts: Sequence[Any]) -> _Subgraph:
            return _Subgraph(parts[-1])

        def defaults(self, parts: Sequence[Any]) -> _Defaults:
            return _Defaults(str(parts[0]).lower(), parts[1])

        def setting(self, names: Sequence[str]) -> _Defaults:
            return _Defaults("graph", {names[0]: names[1]})

        def statements(self, parts: Sequence[Any]) -> list[Any]:
            return list(parts)

        def start(self, parts: Sequence[Any]) -> list[Any]:
            return list(parts)

    return Lark(_GRAMMAR, parser="lalr", transformer=Statements())


def _unquoted(token: str) -> str:
    if not token.startswith('"'):
        return str(token)
    return re.sub(r'\\(["\n])', lambda found: found[1].strip(), token[1:-1])


def parse_dot(text: str, path: Path) -> nx.MultiDiGraph:
    """Read the content of a file; edges are keyed by their number.

    Raises:
        InputError: names the file, and the line at fault.
    """
    from lark import UnexpectedInput, UnexpectedToken

    try:
        *head, statements = _parser().parse(text)
    except UnexpectedInput as error:
        if isinstance(error, UnexpectedToken) and error.token.type == "$END":
            raise InputError(f"{path}: not DOT: it ends early") from None
        found = text[error.pos_in_stream or 0 :][:20]
        raise InputError(f"{path}:{error.line}: not DOT, from {found!r} on") from None
    kinds = [str(one).lower() for one in head]
    if "digraph" not in kinds:
        raise InputError(f"{path}: a graph without directions: a dataflow graph is a digraph")
    names = head[kinds.index("digraph") + 1 :]
    graph = nx.MultiDiGraph(name=names[0] if names else path.stem)
    _Building(graph, path, is_strict=kinds[0] == "strict").take(statements, {}, {}, 0)
    return graph


class _Building:
    """Statements, one after another, into a graph."""

    def __init__(self, graph: nx.MultiDiGraph, path: Path, *, is_strict: bool) -> None:
        self.graph, self.path, self.is_strict = graph, path, is_strict
        self._number = count()

    def take(
        self, statements: Sequence[Any], node: dict[str, str], edge: dict[str, str], depth: int
    ) -> dict[str, None]:
        """Take the statements of a graph or subgraph.

        node, edge: attributes of those that come. Returns the nodes that it has.
        """
        if depth > _DEEPEST:
            raise InputError(f"{self.path}: subgraphs are nested too deeply")
        scope = {"node": dict(node), "edge": dict(edge)}
        scope["graph"] = self.graph.graph if depth == 0 else {}
        found: dict[str, None] = {}
        for one in statements:
            if isinstance(one, _Defaults):
                kept = {key: value for key, value in one.attributes.items() if key != "name"}
                scope[one.kind].update(kept)
                continue
            ends = one.ends if isinstance(one, _Nodes) else [one]
            groups = [self._nodes(end, scope, depth) for end in ends]
            for group in groups:
                found.update(group)
            if not isinstance(one, _Nodes):
                continue
            if len(groups) == 1:
                for name in groups[0]:
                    self.graph.nodes[name].update(one.attributes)
            for sources, targets in pairwise(groups):
                if len(sources) * len(targets) > _MOST_EDGES:
                    raise InputError(f"{self.path}: a statement of more than {_MOST_EDGES:,} edges")
                for u, v in product(sources, targets):
                    self._join(u, v, {**scope["edge"], **one.attributes})
        return found

    def _nodes(self, end: Any, scope: dict[str, dict[str, str]], depth: int) -> dict[str, None]:
        if isinstance(end, _Subgraph):
            return self.take(end.statements, scope["node"], scope["edge"], depth + 1)
        if end not in self.graph:
            self.graph.add_node(end)
            self.graph.nodes[end].update(scope["node"])
        return {end: None}

    def _join(self, u: str, v: str, attributes: dict[str, str]) -> None:
        if self.is_strict and self.graph.has_edge(u, v):
            next(iter(self.graph[u][v].values())).update(attributes)
            return
        edge: Any = (u, v, next(self._number), attributes)
        self.graph.add_edges_from([edge])
