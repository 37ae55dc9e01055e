"""workload=answers: recorded outcomes of a small and a large model, from a CSV file.

Columns: small_right and large_right (0 or 1), prompt, and optionally set and subject.
"""

import csv
import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from doppler.extensions.programs.streams.recording import stream_graph
from doppler.extensions.programs.streams.stream import Stream, StreamGraph
from doppler.extensions.programs.streams.text_features import shape_features
from doppler.support.errors import InputError
from doppler.support.files import read_bytes
from doppler.support.options import Count, FilePath, Seed, checked

_NEEDED = ("prompt", "small_right", "large_right")
_MOST_MB = 256
_OUTCOMES = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "False": 0.0, "True": 1.0}


@checked
def answers(*, path: FilePath, name: str = "answers") -> StreamGraph:
    """Return a stream of questions, each of which one of two models answers.

    Args:
        path: of the table, which may be compressed with gzip.
        name: of the graph.

    Raises:
        InputError: the file cannot be read, lacks a column, has no questions, or has an outcome
            other than 0 and 1; the message names the line.
    """
    return stream_graph(name, ["answer"], _stream(path))


@checked
def answers_program(
    *,
    path: FilePath,
    modules: Count = 3,
    repeats: Count = 3,
    outcome: Literal["all", "mean"] = "mean",
    seed: Seed = 0,
    name: str = "answers_program",
) -> StreamGraph:
    """Return a stream of a program whose modules answer a question each.

    An input is a set of questions of one subject, one for each module. Allocators see the shape of
    each module's question (text_features.shape_features).

    Args:
        path: see `answers`.
        modules: number of modules of the program.
        repeats: how often each question is asked, each time together with other questions.
        outcome: how right a program is: the ``mean`` of its answers, or 1 only if ``all`` are
            right.
        seed: of which questions go together.
        name: of the graph.

    Raises:
        InputError: as `answers`; or no subject has enough questions.
    """
    asked, rng = _stream(path), np.random.default_rng(seed)
    parts = []
    for group in np.tile(np.arange(int(asked.group.max()) + 1), repeats):
        members = rng.permutation(np.flatnonzero(asked.group == group))
        parts.append(members[: len(members) // modules * modules].reshape(-1, modules))
    question_NM = np.concatenate(parts)
    if not len(question_NM):
        raise InputError(f"{path}: no subject has {modules} questions")
    shapes = np.array([shape_features(text) for text in asked.texts])
    stream = Stream(
        backends=asked.backends,
        right=asked.right[question_NM, 0],
        cost=asked.cost,
        features=shapes[question_NM].reshape(len(question_NM), -1),
        group=asked.group[question_NM[:, 0]],
        by_module=True,
        outcome=outcome,
    )
    return stream_graph(name, [f"answer{m}" for m in range(modules)], stream)


def _stream(path: str) -> Stream:
    """Return the questions of a file as a stream with one module."""
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
    return Stream(
        backends=("small", "large"),
        right=right,
        cost=np.array([0.0, 1.0]),
        features=np.zeros((len(lines), 0)),
        group=group.astype(np.int64),
        texts=tuple(str(line["prompt"] or "") for line in lines),
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
        lines = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if None in line:  # csv collects what has no column there
            raise InputError(
                f"{path}: question {number}: more cells than there are columns; a text with a "
                "comma needs quotes"
            )
    return lines


def _unzipped(data: bytes, path: str | Path) -> bytes:
    """Return the content of a gzip file, up to a limit of bytes."""
    most = _MOST_MB * 2**20
    try:
        with gzip.open(io.BytesIO(data)) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if len(content) > most:
        raise InputError(f"{path}: more than {_MOST_MB} MB once decompressed")
    return content
