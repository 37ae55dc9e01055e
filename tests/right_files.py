"""One right file of every format that is read, how it is read, and how reading it fails."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from problems import cluster_of, graph_of
from results import ROW, leave_run

from doppler.api.clusters import resolve_cluster
from doppler.graph import load_graph
from doppler.problem import Placement, build
from doppler.problem.costs import load_all
from doppler.report.finished import read_run
from doppler.report.schedules import read_timeline
from doppler.support.errors import InputError
from doppler.trace.perfetto import DEVICES

PROBLEM = build(graph_of([1, 2], [(0, 1, 1.0)]), cluster_of([1.0, 1.0]))
DEVICE = {
    **{"flop_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e9},
    **{"launch_overhead_s": 1e-6, "memory_bytes": 16e9},
}
GRAPH = {
    **{"format": "doppler-graph", "version": 1, "name": "two"},
    "ops": [{"name": "a", "flops": 1}, {"name": "b", "flops": 2}],
    "edges": [{"src": 0, "dst": 1, "bytes": 4}],
}
COSTS = {
    **{"format": "doppler-costs", "version": 1, "host": "here"},
    "tables": [
        {
            **{"devices": ["x", "y"], "kernels": {"k": [1e-3, None]}},
            **{"latency_s": [[None, 1e-6], [1e-6, None]]},
            **{"seconds_per_byte": [[None, 1e-9], [1e-9, None]]},
        }
    ],
}
CLUSTER = {
    **{"_target_": "doppler.cluster.custom", "name": "mine", "devices": [DEVICE, DEVICE]},
    **{"bytes_per_s": 1e9, "latency_s": 1e-6},
}
PLACEMENT = {"problem_hash": PROBLEM.hash, "device": [0, 1], "priority": [0, 1]}
SUMMARY = {"stage": "train", "seed": 0, "makespan_s": 0.1}
TRACE = {
    "traceEvents": [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": DEVICES,
            "tid": 1,
            "args": {"name": "device 0: x"},
        },
        {
            **{"ph": "X", "name": "a", "pid": DEVICES, "tid": 1, "ts": 0.0, "dur": 2.0},
            "args": {"op": 0, "kind": "op", "node": 0, "critical": True},
        },
    ]
}


def read_summary(path: Path) -> Any:
    """Of a run that is whole but for its summary."""
    directory = leave_run(Path(tempfile.mkdtemp(dir=path.parent)), [ROW], {})
    os.replace(path, directory / "summary.json")
    return read_run(directory)


# What is read, how, and a file that is right.
READERS: dict[str, tuple[Callable[[Path], Any], dict]] = {
    "graph.json": (load_graph, GRAPH),
    "costs.json": (load_all, COSTS),
    "cluster.yaml": (resolve_cluster, CLUSTER),
    "placement.json": (lambda path: Placement.load(path, PROBLEM), PLACEMENT),
    "summary.json": (read_summary, SUMMARY),
    "trace.json": (read_timeline, TRACE),
}

# What is no such file, whatever is read.
CONTENTS = {
    **{"empty": b"", "binary": bytes(range(256)), "latin": "ü".encode("latin-1")},
    **{"null": b"null", "number": b"1", "text": b'"text"', "list": b"[]", "nothing": b"{}"},
    **{"zero": b"\0", "half": b'{"a": [1', "infinite": b"Infinity", "deep": 100_000 * b"["},
    **{"digits": b'{"version": ' + 5000 * b"9" + b"}", "twice": b'{"a": 1, "a": 2}'},
    **{"surrogate": b'{"name": "\\ud800"}', "comma": b'{"a": 1,}}', "objects": 50_000 * b'{"a":'},
}


def message(read: Callable[[Path], Any], path: Path) -> str:
    """The one line in which reading ends; it names the file."""
    with pytest.raises(InputError) as error:
        read(path)
    told = str(error.value)
    assert "\n" not in told and path.name in told and len(told) < 600
    return told


def changed(content: dict, where: tuple, value: object) -> dict:
    """A copy with another value somewhere."""
    copy = json.loads(json.dumps(content))
    found: Any = copy
    for key in where[:-1]:
        found = found[key]
    found[where[-1]] = value
    return copy
