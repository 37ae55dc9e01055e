"""The workload answers: recorded outcomes of a small and a large model, in a CSV file.

Columns: small_right and large_right (0 or 1), prompt, and maybe set and subject.
"""

import csv
import gzip
import io
import sys
import zlib
from pathlib import Path

import numpy as np

from doppler.errors import InputError
from doppler.files import read_bytes
from doppler.graph import Edges, Inputs, Ops
from doppler.options import FilePath, checked
from doppler.streams.stream import Stream, StreamGraph

_NEEDED = ("prompt", "small_right", "large_right")
_MOST_MB = 256
_OUTCOMES = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "False": 0.0, "True": 1.0}


@checked
def answers(*, path: FilePath, name: str = "answers") -> StreamGraph:
    """A stream of questions, each asked to one of two models.

    Args:
        path: of the table, which may be compressed by gzip.
        name: of the graph.

    Raises:
        InputError: the file cannot be read, lacks a column or questions, or has an outcome that is
            neither 0 nor 1; named with its line.
    """
    lines = _read(path)
    if not lines:
        raise InputError(f"{path}: no questions")
    if missing := [column for column in _NEEDED if column not in lines[0]]:
        raise InputError(f"{path}: no column {missing[0]}, there are {', '.join(lines[0])}")
    right = np.empty((len(lines), 1, 2))
    for number, line in enumerate(lines):
        for k, column in enumerate(_NEEDED[1:]):
            right[number, 0, k] = _outcome(line[column], f"{path}: question {number + 1}: {column}")
    subjects = [f"{line.get('set')} {line.get('subject')}" for line in lines]
    _, group = np.unique(subjects, return_inverse=True)
    stream = Stream(
        backends=("small", "large"),
        right=right,
        cost=np.array([0.0, 1.0]),
        features=np.zeros((len(lines), 0)),
        group=group.astype(np.int64),
        texts=tuple(str(line["prompt"] or "") for line in lines),
    )
    return stream_graph(name, ["answer"], stream)


def stream_graph(name: str, modules: list[str], stream: Stream) -> StreamGraph:
    """The program of a stream: modules one after another."""
    num = len(modules)
    return StreamGraph(
        name=name,
        ops=Ops.make(names=modules, kinds="module", flops=np.ones(num)),
        edges=Edges.make(src=np.arange(num - 1), dst=np.arange(1, num), bytes=np.zeros(num - 1)),
        inputs=Inputs.make(),
        stream=stream,
    )


def _outcome(text: str | None, where: str) -> float:
    if text is None or text.strip() not in _OUTCOMES:
        raise InputError(f"{where}: expected 0 or 1, got {text!r}")
    return _OUTCOMES[text.strip()]


def _read(path: str) -> list[dict[str, str | None]]:
    data = read_bytes(path)
    if data[:2] == b"\x1f\x8b":
        data = _unzipped(data, path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    try:
        csv.field_size_limit(sys.maxsize)
        return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None


def _unzipped(data: bytes, path: str | Path) -> bytes:
    """What a gzip file holds, of bounded size."""
    most = _MOST_MB * 2**20
    try:
        with gzip.open(io.BytesIO(data)) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if len(content) > most:
        raise InputError(f"{path}: more than {_MOST_MB} MB once decompressed")
    return content
