"""The readers of this folder, by the suffixes of their files."""

from pathlib import Path

from doppler.extensions.formats.dot_format import parse_dot
from doppler.extensions.formats.graphml_format import parse_graphml
from doppler.extensions.formats.imported import imported
from doppler.extensions.formats.profiled_format import is_profiled, parse_profiled
from doppler.extensions.formats.stg_format import parse_stg
from doppler.extensions.formats.wfcommons_format import is_workflow, parse_workflow
from doppler.graph.dataflow import DataflowGraph
from doppler.graph.formats import GraphReader
from doppler.support.files import parse_json


def _read_dot(text: str, path: Path) -> DataflowGraph:
    graph, dropped = parse_dot(text, path)
    return imported(graph, path, dropped)


def _read_graphml(text: str, path: Path) -> DataflowGraph:
    graph, dropped = parse_graphml(text, path)
    return imported(graph, path, dropped)


def _read_json(text: str, path: Path) -> DataflowGraph | None:
    """Read a workflow or a profiled network; None for other JSON, which may be Doppler's own."""
    data = parse_json(text, path)
    if is_workflow(data):
        return parse_workflow(data, path)
    return parse_profiled(data, path) if is_profiled(data) else None


READERS = [
    GraphReader(suffixes=(".json",), read=_read_json),
    GraphReader(suffixes=(".dot", ".gv"), read=_read_dot),
    GraphReader(suffixes=(".stg",), read=parse_stg),
    GraphReader(suffixes=(".graphml",), read=_read_graphml),
]
