"""GraphML: reads a text into a networkx graph with all its attributes, which are texts.

Every node and edge of the first graph is read, including those of graphs within its nodes. What is
not read is listed in words: groups of nodes that yEd draws, further graphs, and ports.

Source: Brandes et al., "GraphML Progress Report", 2001, and its schema 1.1; yEd's conventions for
groups and graphics.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError, fromstring

import networkx as nx

from doppler.support.errors import InputError

_TYPES = ("boolean", "int", "long", "float", "double", "string")
_DEEPEST = 200  # nested graphs
_MOST_DEFAULTS = 10_000_000
_DRAWN = "drawn"  # replaces the graphics that a program stores with nodes and edges


class _Key(NamedTuple):
    """The declaration of an attribute.

    Attributes:
        identity: by which data refer to it; networkx uses the same for keys of nodes and of edges.
        name: of the attribute.
        of: what has the attribute: node, edge, graph or all.
        default: its value unless given, or None.
    """

    identity: str
    name: str
    of: str
    default: str | None


def parse_graphml(text: str, path: Path) -> tuple[nx.MultiDiGraph, list[str]]:
    """Read the content of a GraphML file.

    Args:
        text: of the file.
        path: of the file, for messages.

    Returns:
        The graph, whose edge keys are the edges' numbers, and a list in words of what was not read.

    Raises:
        InputError: names the file, and the node or edge. Document types are refused, because their
            entities may refer to each other without end.
    """
    if re.search(r"<!(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise InputError(f"{path}: document types are not supported")
    try:
        root = fromstring(text)
    except ParseError as error:
        raise InputError(f"{path}: not GraphML: {error}") from None
    except (LookupError, ValueError) as error:  # unknown encoding
        raise InputError(f"{path}: not GraphML: {' '.join(str(error).split())[:200]}") from None
    if _tag(root) != "graphml":
        raise InputError(f"{path}: not GraphML: its root is {_tag(root)[:40]!r}")
    try:
        reader = _Reader(root)
        return reader.graph, reader.left_out()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _tag(element: Element) -> str:
    """Return the name of an element without its namespace."""
    tag = element.tag if isinstance(element.tag, str) else ""
    return tag.rpartition("}")[2]


def _children(element: Element, tag: str) -> Iterator[Element]:
    return (one for one in element if _tag(one) == tag)


def _text(element: Element) -> str:
    """Return the text of an element; graphics are replaced by a constant."""
    return _DRAWN if len(element) else element.text or ""


class _Reader:
    """Reads a document into its graph, and counts the elements that it has read."""

    def __init__(self, root: Element) -> None:
        self._keys = [_key(one) for one in _children(root, "key")]
        self._of_kind: dict[str, dict[str, _Key]] = {}
        self._num_defaults = 0
        self.graph = nx.MultiDiGraph()
        self._groups: list[str] = []
        self._edges: list[tuple[Element, bool]] = []
        self._in_document = Counter(map(_tag, root.iter()))
        graphs = list(_children(root, "graph"))
        if not graphs:
            raise InputError("not GraphML: it has no graph")
        self.graph.graph.update(self._attributes(graphs[0], "graph", "graph", has_defaults=False))
        self._read_nodes(graphs[0], 0)
        for number, (element, is_directed) in enumerate(self._edges):
            self._read_edge(number, element, is_directed)
        self._drop_groups()
        self._others = [Counter(map(_tag, one.iter())) for one in graphs[1:]]
        for tag, read in (("node", self._num_nodes), ("edge", len(self._edges))):
            beyond = self._in_document[tag] - read - sum(one[tag] for one in self._others)
            if beyond:
                raise InputError(f"{beyond} {tag}s are outside of any graph")

    def left_out(self) -> list[str]:
        """List in words what was not read."""
        found = []
        if self._groups:
            names = ", ".join(map(repr, self._groups[:5]))
            more = f" and {len(self._groups) - 5} more" if len(self._groups) > 5 else ""
            found.append(f"groups {names}{more}, whose nodes are kept")
        for one in self._others:
            found.append(f"a further graph of {one['node']} nodes and {one['edge']} edges")
        if ports := self._in_document["port"]:
            found.append(f"{ports} ports")
        return found

    @property
    def _num_nodes(self) -> int:
        return len(self.graph) + len(self._groups)

    def _read_nodes(self, graph: Element, depth: int) -> None:
        if depth > _DEEPEST:
            raise InputError("graphs are nested too deeply")
        default = graph.get("edgedefault", "directed")
        if default not in ("directed", "undirected"):
            raise InputError(f"edgedefault: expected directed or undirected, found {default!r:.40}")
        for element in graph:
            if _tag(element) == "hyperedge":
                raise InputError("a hyperedge: edges of a dataflow graph have two ends")
            if _tag(element) == "edge":
                own = element.get("directed", str(default == "directed").lower())
                self._edges.append((element, own in ("true", "1")))
                for inner in _children(element, "graph"):
                    self._read_nodes(inner, depth + 1)
            if _tag(element) == "node":
                self._read_node(element, depth)

    def _read_node(self, element: Element, depth: int) -> None:
        name = element.get("id")
        if name is None:
            raise InputError("a node without an id")
        if name in self.graph:
            raise InputError(f"node {name!r} is defined twice")
        self.graph.add_node(name, **{_OWN: self._own(element, "node", f"node {name!r}")})
        for inner in _children(element, "graph"):
            self.graph.nodes[name][_GROUP] = True
            self._read_nodes(inner, depth + 1)

    def _read_edge(self, number: int, element: Element, is_directed: bool) -> None:
        source, target = element.get("source"), element.get("target")
        where = f"edge {source!r} -> {target!r}"
        for end in (source, target):
            if end not in self.graph:
                raise InputError(f"{where}: no node {end!r}")
        if not is_directed:
            raise InputError(f"{where} is undirected: a dataflow graph needs directed edges")
        attributes = self._attributes(element, "edge", where)
        edge: Any = (source, target, number, attributes)
        self.graph.add_edges_from([edge])

    def _drop_groups(self) -> None:
        """Remove nodes that only frame a graph: without data of their own and without edges."""
        for name, data in list(self.graph.nodes(data=True)):
            own = data.pop(_OWN)
            is_group = data.pop(_GROUP, False)
            said = [value for value in own.values() if value.strip() not in ("", _DRAWN)]
            if is_group and not said and not self.graph.degree(name):
                self.graph.remove_node(name)
                self._groups.append(name)
            else:
                data.update(self._with_defaults(own, "node"))

    # --- Attributes -------------------------------------------------------------------------------

    def _attributes(
        self, element: Element, kind: str, where: str, *, has_defaults: bool = True
    ) -> dict[str, str]:
        own = self._own(element, kind, where)
        return self._with_defaults(own, kind) if has_defaults else _named(own)

    def _own(self, element: Element, kind: str, where: str) -> dict[_Key, str]:
        """Return the attributes that an element itself gives."""
        known = self._keys_of(kind)
        found: dict[_Key, str] = {}
        for data in _children(element, "data"):
            key = known.get(data.get("key", ""))
            if key is None:
                raise InputError(f"{where}: not GraphML: no key {data.get('key')!r} of a {kind}")
            if key in found:
                raise InputError(f"{where}: {key.name} is given twice")
            found[key] = _text(data)
        return found

    def _keys_of(self, kind: str) -> dict[str, _Key]:
        if kind not in self._of_kind:
            known = (one for one in self._keys if one.of in (kind, "all"))
            self._of_kind[kind] = {one.identity: one for one in known}
        return self._of_kind[kind]

    def _with_defaults(self, own: dict[_Key, str], kind: str) -> dict[str, str]:
        keys = self._keys_of(kind).values()
        defaults = {key: key.default for key in keys if key.default is not None}
        self._num_defaults += len(defaults)
        if self._num_defaults > _MOST_DEFAULTS:
            raise InputError(f"more than {_MOST_DEFAULTS:,} default attributes")
        return _named({**defaults, **own})


def _named(by_key: dict[_Key, str]) -> dict[str, str]:
    """Return attributes by name, without empty ones."""
    values: dict[str, str] = {}
    for key, value in by_key.items():
        if not value.strip():
            continue
        if values.setdefault(key.name, value) != value:
            raise InputError(
                f"not GraphML: two keys with the name {key.name!r} have different values"
            )
    return values


# Keys of a node while it is read: its own data, and whether it contains a graph.
_OWN, _GROUP = "own", "group"


def _key(element: Element) -> _Key:
    name = element.get("id")
    if name is None:
        raise InputError("not GraphML: a key without an id")
    kind = element.get("attr.type", "string")
    if kind not in _TYPES:
        raise InputError(f"not GraphML: key {name!r}: attr.type {kind[:40]!r}")
    defaults = [_text(one) for one in _children(element, "default")]
    called = element.get("attr.name") or element.get("yfiles.type") or name
    return _Key(name, called, element.get("for", "all"), defaults[0] if defaults else None)
