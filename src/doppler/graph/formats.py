"""Graph files: our JSON format, the text format of the published graphs, and formats of plugins.

docs/formats.md describes them.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from doppler.graph.dataflow import DataflowGraph
from doppler.graph.json_format import parse_graph, render_json
from doppler.graph.text_format import parse_text, render_text
from doppler.hooks import contributed
from doppler.support.errors import InputError
from doppler.support.files import parse_json, read_text
from doppler.support.options import FilePath


@dataclass(frozen=True, kw_only=True)
class GraphReader:
    """A format of graph files.

    Attributes:
        suffixes: of its files, in small letters, with the dot.
        read: gets the text of a file and its path; returns the graph, or None if the file is of
            another format with the same suffix.
    """

    suffixes: Sequence[str]
    read: Callable[[str, Path], DataflowGraph | None]


def _read_json(text: str, path: Path) -> DataflowGraph:
    return parse_graph(parse_json(text, path), path)


_OWN_READERS = (
    GraphReader(suffixes=(".json",), read=_read_json),
    GraphReader(suffixes=(".txt",), read=parse_text),
)


def graph_readers() -> list[GraphReader]:
    """Return all readers: those of plugins first, because they know which JSON files are theirs."""
    return [*chain(*contributed("graph_readers")), *_OWN_READERS]


def load_graph(path: FilePath | Path, *, name: str | None = None) -> DataflowGraph:
    """Read a graph in the format of its suffix.

    Args:
        path: a file in a format of docs/formats.md. A suffix that no reader has stands for the text
            format of the published graphs.
        name: of the graph, instead of the name in the file or of the file.

    Raises:
        InputError: names the file, and the line, op or edge at fault.
    """
    path = Path(path)
    text, suffix = read_text(path), path.suffix.lower()
    readers = [reader for reader in graph_readers() if suffix in reader.suffixes]
    graphs = (reader.read(text, path) for reader in readers)
    graph = next((one for one in graphs if one is not None), None) or parse_text(text, path)
    return graph if name is None else dataclasses.replace(graph, name=name)


def graph_files(folder: Path) -> list[Path]:
    """Return the graphs in a folder, by name; subfolders are not searched.

    Args:
        folder: to search.

    Raises:
        InputError: there is none.
    """
    suffixes = sorted({suffix for reader in graph_readers() for suffix in reader.suffixes})
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    if not found:
        raise InputError(f"{folder}: no graph in it ({', '.join(suffixes)})")
    return found


def write_atomically(path: str | Path, text: str) -> None:
    """Write a file so that readers find the old or the new content, even after a kill.

    Args:
        path: of the file.
        text: new content.

    Raises:
        OSError: names the file.
    """
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces a file atomically if the context ends without error.

    Missing folders are made, except those that are `held`, which must exist.

    Args:
        path: of the file to replace.

    Raises:
        OSError: names the file.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with naming(path):
            for folder in _held & set(path.absolute().parents):
                folder.stat()
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)  # writing would follow a link there
            yield partial
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Make every OSError in the context name the file; that of a full disk names none.

    Args:
        path: of the file.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


_held: set[Path] = set()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make writes into a folder fail, instead of making it again, if someone deletes it meanwhile.

    Args:
        folder: of a run.
    """
    _held.add(folder.absolute())
    try:
        yield
    finally:
        _held.discard(folder.absolute())


def save_json(graph: DataflowGraph, path: str | Path) -> None:
    """Write the JSON format, which keeps everything but `DataflowGraph.notes`.

    Args:
        graph: to write.
        path: of the file.

    Raises:
        OSError: names the file.
    """
    write_atomically(path, render_json(graph))


def save_text(graph: DataflowGraph, path: str | Path) -> None:
    """Write the published text format, which keeps edges, kinds and one cost per op and transfer.

    Args:
        graph: to write.
        path: of the file.

    Raises:
        InputError: the format cannot express the graph: two regions between one pair of ops, or a
            kind with a comma or line break.
    """
    write_atomically(path, render_text(graph))
