"""Turns nodes and edges with attributes, which readers of other formats return, into a graph.

Their times become given costs: a weight of 1 is one second on any device. What a DataflowGraph
cannot represent is dropped, and named in its notes.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from doppler.extensions.formats.networkx_format import from_networkx
from doppler.graph.dataflow import DataflowGraph
from doppler.support.errors import InputError
from doppler.support.files.values import read_number, read_text

_SECONDS = "given_seconds"
_NODE_NUMBERS = (_SECONDS, "flops", "read_bytes", "output_bytes")
_NODE_TEXTS = ("name", "kind", "dtype")
_EDGE_NUMBERS = (_SECONDS, "bytes")
_NAMED = 20  # largest number of attributes that a note names


def imported(graph: nx.MultiDiGraph, path: Path, dropped: Iterable[str] = ()) -> DataflowGraph:
    """Return the DataflowGraph of a graph that was read from a foreign file.

    Attributes of nodes may be ``weight`` or ``given_seconds`` (both in seconds), ``flops``,
    ``read_bytes``, ``output_bytes``, ``name``, ``kind`` and ``dtype``; those of edges ``weight`` or
    ``given_seconds``, and ``bytes``. Letter case does not matter. Other attributes are dropped.

    Args:
        graph: with these attributes. Edge keys are integers: edges with the same producer and the
            same key are one transfer.
        path: of the file.
        dropped: list in words of what the reader has not read.

    Raises:
        InputError: names the file, and the node or edge.
    """
    others: dict[str, dict[str, None]] = {"node attributes": {}, "edge attributes": {}}
    result = nx.MultiDiGraph(name=str(graph.graph.get("name") or path.stem))
    try:
        for node, data in graph.nodes(data=True):
            known = _known(data, _NODE_NUMBERS, _NODE_TEXTS, f"node {node!r}")
            others["node attributes"].update(dict.fromkeys(data.keys() - known.keys()))
            result.add_node(node, **{"name": str(node), **_values(known)})
        for u, v, key, data in graph.edges(keys=True, data=True):
            known = _known(data, _EDGE_NUMBERS, (), f"edge {u!r} -> {v!r}")
            others["edge attributes"].update(dict.fromkeys(data.keys() - known.keys()))
            result.add_edge(u, v, key=key, **_values(known))
        timeless = _check_seconds(result)
        result.graph["counts_memory"] = False
        made = from_networkx(result)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    unused = [key for key in graph.graph if key != "name"]
    listed = {"graph attributes": unused, **others}
    lost = [*dropped, *(f"{kind} {_listed(names)}" for kind, names in listed.items() if names)]
    notes = [f"{path.name}: dropped: {'; '.join(lost)}"] if lost else []
    if timeless:
        notes.append(
            f"{path.name}: its edges have neither seconds nor bytes: transfers take no time"
        )
    return dataclasses.replace(made, notes=tuple(notes))


def _known(
    data: Mapping[str, Any], numbers: Sequence[str], texts: Sequence[str], where: str
) -> dict[str, tuple[str, Any]]:
    """Return, by the attribute's name in the file, its name in Doppler and its value."""
    found: dict[str, tuple[str, Any]] = {}
    for key, value in data.items():
        name = _SECONDS if key.lower() == "weight" else key.lower()
        if name in (meant for meant, _ in found.values()):
            raise InputError(f"{where}: {name} is given twice")
        if name in numbers:
            found[key] = name, _number(value, f"{where}: {key}")
        elif name in texts:
            found[key] = name, read_text(value, f"{where}: {key}")
    return found


def _values(known: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    return dict(known.values())


def _number(value: object, where: str) -> float:
    """Read a number, or a text that is one."""
    if isinstance(value, str) and "_" not in value:  # only Python reads 1_000 as a number
        try:
            value = float(value)
        except ValueError:
            pass
    return read_number(value, where)


def _check_seconds(graph: nx.MultiDiGraph) -> bool:
    """Check that all nodes have seconds or none has; return whether edges without data take 0 s."""
    nodes = list(graph.nodes(data=True))
    timed = [node for node, data in nodes if _SECONDS in data]
    edges = list(graph.edges(data=True))
    timed_edges = [edge for edge in edges if _SECONDS in edge[2]]
    if not timed:
        if not any("flops" in data for _, data in nodes):
            raise InputError("no node has a weight, given_seconds or flops")
        if timed_edges:
            raise InputError("edges have seconds, but nodes do not")
        return False
    if len(timed) < len(nodes):
        node = next(node for node, data in nodes if _SECONDS not in data)
        raise InputError(f"node {node!r}: no weight or {_SECONDS}, which others have")
    if timed_edges and len(timed_edges) < len(edges):
        u, v, _ = next(edge for edge in edges if _SECONDS not in edge[2])
        raise InputError(f"edge {u!r} -> {v!r}: no weight or {_SECONDS}, which others have")
    if timed_edges or any("bytes" in data for *_, data in edges):
        return False
    for *_, data in edges:
        data[_SECONDS] = 0.0
    return bool(edges)


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(str(name)) for name in names[:_NAMED]) + more
