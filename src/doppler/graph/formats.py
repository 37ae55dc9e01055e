"""Graph files: our JSON format, and the text format of the published graphs (docs/formats.md)."""

import dataclasses
import os
from pathlib import Path

from doppler.files import read_text
from doppler.graph.dataflow import DataflowGraph
from doppler.graph.json_format import parse_graph, render_json
from doppler.graph.text_format import parse_text, render_text
from doppler.options import FilePath


def load_graph(path: FilePath | Path, *, name: str | None = None) -> DataflowGraph:
    """Read a graph; the suffix ``.json`` means JSON, anything else the published text format.

    name: of the graph, instead of the one in the file or the file's own.

    Raises:
        InputError: names the file, and the line, op or edge at fault.
    """
    path = Path(path)
    text = read_text(path)
    graph = parse_graph(text, path) if path.suffix == ".json" else parse_text(text, path)
    return graph if name is None else dataclasses.replace(graph, name=name)


def write_atomically(path: str | Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old or the new content."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def save_json(graph: DataflowGraph, path: str | Path) -> None:
    """Write the JSON format, which keeps everything."""
    write_atomically(path, render_json(graph))


def save_text(graph: DataflowGraph, path: str | Path) -> None:
    """Write the published text format, which keeps edges, kinds and one cost per op and transfer.

    Raises:
        InputError: what the format cannot say: two regions between one pair of ops, a kind with a
            comma or line break.
    """
    write_atomically(path, render_text(graph))
