"""WfCommons JSON: scientific workflows that have been run, and the times of their tasks.

A task is an op. A file that one task writes and others read is a region of the writer's output, and
files that no task writes are inputs. Tasks take the recorded seconds on any device; files move over
the cluster's links.

Source: Coleman et al., "WfCommons: a framework for enabling scientific workflow research and
development", FGCS 2022; WfFormat 1.5 and 1.6, and 1.3 and 1.4, where tasks contain their files.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from doppler.extensions.formats.imported import imported
from doppler.graph.dataflow import DataflowGraph, Inputs
from doppler.support.errors import InputError
from doppler.support.files.values import fault, read_number, read_text

_SECONDS, _SIZE = ("runtimeInSeconds", "runtime"), ("sizeInBytes", "size")
# Keys that are read, by the object that has them. Other keys are named in the graph's notes.
_READ = {
    "": {"schemaVersion", "name", "workflow"},
    "workflow": {"specification", "execution", "tasks", "jobs"},
    "specification": {"tasks", "files"},
    "execution": {"tasks"},
    "task": {"id", "name", "parents", "children", "files", "inputFiles", "outputFiles", *_SECONDS},
}


class _Task(NamedTuple):
    """A task.

    Attributes:
        name: of the task.
        seconds: recorded duration.
        others: other tasks, and whether they come before this one.
        reads: bytes of the files that it reads, by name.
        writes: bytes of the files that it writes, by name.
    """

    name: str
    seconds: float
    others: list[tuple[str, bool]]
    reads: dict[str, float]
    writes: dict[str, float]


def is_workflow(data: Any) -> bool:
    """Return whether the content of a JSON file has the keys of a workflow.

    Args:
        data: content of the file.
    """
    return isinstance(data, dict) and "schemaVersion" in data and "workflow" in data


def parse_workflow(data: Any, path: Path) -> DataflowGraph:
    """Return the graph of a workflow.

    Args:
        data: content of a JSON file.
        path: of the file, for messages and as the name of a graph without one.

    Raises:
        InputError: names the file and the task.
    """
    try:
        dropped: dict[str, None] = {}
        tasks = _tasks(data, dropped)
        graph, writer = _with_edges(tasks)
        graph.graph["name"] = data.get("name") or path.stem
        lost = [f"keys {', '.join(map(repr, dropped))}"] if dropped else []
        made = imported(graph, path, lost)
        return dataclasses.replace(made, inputs=_inputs(tasks, writer))
    except InputError as error:
        told = str(error)
        raise InputError(told if told.startswith(f"{path}:") else f"{path}: {told}") from None


def _tasks(data: Mapping[str, Any], dropped: dict[str, None]) -> dict[str, _Task]:
    """Return the tasks by id, or by name if they have no id."""
    _drop(data, "", dropped)
    workflow = _object(data["workflow"], "workflow")
    _drop(workflow, "workflow", dropped)
    sizes: dict[str, float] = {}
    seconds: dict[str, float] = {}
    if "specification" in workflow:
        specified = _object(workflow["specification"], "specification")
        executed = _object(workflow.get("execution", {}), "execution")
        _drop(specified, "specification", dropped)
        _drop(executed, "execution", dropped)
        for where, row in _rows(specified, "files"):
            sizes[_text(row, "id", where)] = _first(row, _SIZE, where)
        for where, row in _rows(executed, "tasks"):
            seconds[_text(row, "id", where)] = _first(row, _SECONDS, where)
            _drop(row, "task", dropped)
        rows = _rows(specified, "tasks")
    else:
        rows = _rows(workflow, "tasks" if "tasks" in workflow else "jobs")
    found: dict[str, _Task] = {}
    for where, row in rows:
        _drop(row, "task", dropped)
        key = _text(row, "id" if "id" in row else "name", where)
        if key in found:
            raise InputError(f"{where}: task {key!r} is defined twice")
        took_s = seconds[key] if key in seconds else _first(row, _SECONDS, where)
        found[key] = _task(row, key, took_s, sizes, where)
    if not found:
        raise InputError("workflow: no tasks")
    return found


def _task(
    row: Mapping[str, Any], key: str, seconds: float, sizes: Mapping[str, float], where: str
) -> _Task:
    reads: dict[str, float] = {}
    writes: dict[str, float] = {}
    for column, into in (("inputFiles", reads), ("outputFiles", writes)):
        for name in _texts(row, column, where):
            if name not in sizes:
                raise InputError(f"{where}.{column}: no file {name!r}")
            into[name] = sizes[name]
    for at, file in _rows(row, "files", where):
        link = _text(file, "link", at)
        if link not in ("input", "output"):
            raise fault(f"{at}.link", "input or output", link)
        into = reads if link == "input" else writes
        into[_text(file, "name", at)] = _first(file, _SIZE, at)
    others = [(one, True) for one in _texts(row, "parents", where)]
    others += [(one, False) for one in _texts(row, "children", where)]
    return _Task(
        _text(row, "name", where) if "name" in row else key, seconds, others, reads, writes
    )


def _with_edges(tasks: Mapping[str, _Task]) -> tuple[nx.MultiDiGraph, dict[str, str]]:
    """Return the tasks with what moves between them, and the task that writes each file."""
    graph = nx.MultiDiGraph()
    writer: dict[str, str] = {}
    for key, task in tasks.items():
        graph.add_node(key, name=task.name, given_seconds=task.seconds)
        for file in task.writes:
            if writer.setdefault(file, key) != key:
                raise InputError(f"task {key!r}: {writer[file]!r} also writes {file!r}")
    by_name = {task.name: key for key, task in tasks.items()}
    pairs: dict[tuple[str, str], None] = {}
    for key, task in tasks.items():
        for other, is_before in task.others:
            known = other if other in tasks else by_name.get(other)
            if known is None:
                raise InputError(f"task {key!r}: no task {other!r}")
            pairs[(known, key) if is_before else (key, known)] = None
        for file in task.reads:
            if file in writer and writer[file] != key:
                pairs[writer[file], key] = None
    number = {file: i for i, file in enumerate(writer, 1)}
    for u, v in pairs:
        moved = [file for file in tasks[v].reads if writer.get(file) == u]
        for file in moved:
            graph.add_edge(u, v, key=number[file], bytes=tasks[u].writes[file])
        if not moved:  # one task only waits for the other
            graph.add_edge(u, v, key=0, bytes=0.0)
    return graph, writer


def _inputs(tasks: Mapping[str, _Task], writer: Mapping[str, str]) -> Inputs:
    readers: dict[str, list[int]] = {}
    size: dict[str, float] = {}
    for v, task in enumerate(tasks.values()):
        for file in task.reads:
            if file not in writer:
                readers.setdefault(file, []).append(v)
                size[file] = task.reads[file]
    return Inputs.make(
        names=list(readers), bytes=list(size.values()), consumers=list(readers.values())
    )


def _drop(row: Mapping[str, Any], kind: str, dropped: dict[str, None]) -> None:
    dropped.update(dict.fromkeys(key for key in row if key not in _READ[kind]))


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise fault(where, "an object", value)
    return value


def _rows(
    holder: Mapping[str, Any], key: str, where: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    at = f"{where}{'.' if where else ''}{key}"
    rows = holder.get(key, [])
    if not isinstance(rows, list):
        raise fault(at, "a list", rows)
    for i, row in enumerate(rows):
        yield f"{at}[{i}]", _object(row, f"{at}[{i}]")


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    if key not in row:
        raise InputError(f"{where}: {key!r} is missing")
    return read_text(row[key], f"{where}.{key}")


def _texts(row: Mapping[str, Any], key: str, where: str) -> list[str]:
    values = row.get(key, [])
    if not isinstance(values, list):
        raise fault(f"{where}.{key}", "a list", values)
    return [read_text(one, f"{where}.{key}") for one in values]


def _first(row: Mapping[str, Any], keys: tuple[str, ...], where: str) -> float:
    for key in keys:
        if key in row:
            return read_number(row[key], f"{where}.{key}")
    raise InputError(f"{where}: {keys[0]!r} is missing")
