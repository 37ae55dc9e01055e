"""Graph files: our JSON format, the text format of the published graphs, and formats of others.

docs/formats.md describes them.
"""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from doppler.errors import InputError
from doppler.files import parse_json, read_text
from doppler.graph.dataflow import DataflowGraph
from doppler.graph.dot_format import parse_dot
from doppler.graph.graphml_format import parse_graphml
from doppler.graph.imported import imported
from doppler.graph.json_format import parse_graph, render_json
from doppler.graph.profiled_format import is_profiled, parse_profiled
from doppler.graph.stg_format import parse_stg
from doppler.graph.text_format import parse_text, render_text
from doppler.graph.wfcommons_format import is_workflow, parse_workflow
from doppler.options import FilePath

# Of files in a folder: what is a graph. A file that is named itself may have any other suffix.
SUFFIXES = (".json", ".dot", ".gv", ".stg", ".graphml", ".txt")


def load_graph(path: FilePath | Path, *, name: str | None = None) -> DataflowGraph:
    """Read a graph, in the format that its suffix says.

    Args:
        path: ``.json`` is JSON, of ours, of WfCommons or a profiled network; ``.dot`` and ``.gv``
            are DOT, ``.stg`` is the Standard Task Graph format, ``.graphml`` GraphML, and anything
            else the text format of the published graphs.
        name: of the graph, instead of the one in the file or the file's own.

    Raises:
        InputError: names the file, and the line, op or edge at fault.
    """
    path = Path(path)
    graph = _parsed(read_text(path), path)
    return graph if name is None else dataclasses.replace(graph, name=name)


def _parsed(text: str, path: Path) -> DataflowGraph:
    suffix = path.suffix.lower()
    if suffix == ".json":
        data = parse_json(text, path)
        if is_workflow(data):
            return parse_workflow(data, path)
        return parse_profiled(data, path) if is_profiled(data) else parse_graph(data, path)
    if suffix in (".dot", ".gv"):
        return imported(parse_dot(text, path), path)
    if suffix == ".graphml":
        return imported(parse_graphml(text, path), path)
    return parse_stg(text, path) if suffix == ".stg" else parse_text(text, path)


def graph_files(folder: Path) -> list[Path]:
    """The graphs in a folder, by name; those in its folders are not.

    Raises:
        InputError: there is none.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise InputError(f"{folder}: no graph in it ({', '.join(SUFFIXES)})")
    return found


def write_atomically(path: str | Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old or the new content.

    Raises:
        OSError: names the file.
    """
    with replaced(path) as partial:
        partial.write_text(text)


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Where to write what replaces a file when the context ends well, atomically.

    Folders that are missing are made, but those that are `held` must be there.

    Raises:
        OSError: names the file, whatever could not be done.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with naming(path):
            for folder in _held & set(path.absolute().parents):
                folder.stat()
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError of what is done here names the file: a full disk names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


_held: set[Path] = set()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder that others may delete meanwhile: then nothing makes it again, writing fails."""
    _held.add(folder.absolute())
    try:
        yield
    finally:
        _held.discard(folder.absolute())


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
