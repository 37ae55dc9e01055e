"""Profiled networks: milliseconds on a CPU and on an accelerator, sizes, ops that go together.

A machine has ``maxFPGAs`` accelerators of ``maxSizePerFPGA`` bytes, then ``maxCPUs`` CPUs with
memory enough. The size of an op, its weights and what it writes, lies on its device all the time.
What an op writes goes through the memory of the CPUs: ``cost`` to an accelerator or from it, twice
that from one to another, and nothing between CPUs.

Source: Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators",
NeurIPS 2020, and the inputs published with it. There a part of the graph runs on an accelerator
at a time, after all that it reads has come; here ops start when they can.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, Ops
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import Table, read_integer, read_number, read_object

_MS = 1e-3
_HEAD = ("maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges")
_NODE = (
    *("name", "id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode"),
    *("colorClass", "layerId", "size"),
)
_EDGE = ("sourceId", "destId", "cost", "size")
_MOST_DEVICES = 1024
# Seconds of an op that an accelerator cannot run; memory of a CPU, which the file does not give.
_NEVER, _ENOUGH_BYTES = np.inf, 1e15
ACCELERATOR, CPU = "accelerator", "cpu"


def is_profiled(data: Any) -> bool:
    """Whether what a JSON file says has the keys of a profiled network."""
    return isinstance(data, dict) and {"maxFPGAs", "nodes"} <= data.keys()


def parse_profiled(data: Any, path: Path) -> DataflowGraph:
    """A graph of what a JSON file says, for the devices of `machine_of`.

    Raises:
        InputError: names the file, and the entry at fault.
    """
    try:
        num_accelerators, num_cpus, _ = _machine(data)
        nodes, edges = Table(data, "nodes", _NODE), Table(data, "edges", _EDGE)
        src_E, dst_E = _ends(nodes, edges)
        names = nodes.texts("name", lambda v: f"node{v}")
        return DataflowGraph(
            name=path.stem,
            ops=Ops.make(
                names=names,
                flops=np.zeros(len(names)),
                group=nodes.integers("colorClass", -1),
            ),
            edges=Edges.make(src=src_E, dst=dst_E, bytes=np.zeros(len(src_E))),
            inputs=Inputs.make(
                names=[f"size of {name}" for name in names],
                bytes=nodes.numbers("size"),
                consumers=[(v,) for v in range(len(names))],
            ),
            given_costs=GivenCosts.make(
                op_seconds=_op_seconds(nodes, num_accelerators, num_cpus),
                # From accelerators, then from CPUs, to either.
                transfer_seconds=np.multiply.outer(
                    np.array(edges.numbers("cost")) * _MS, [[2.0, 1.0], [1.0, 0.0]]
                ),
                kinds=(ACCELERATOR, CPU),
                counts_memory=True,
            ),
            notes=(
                f"{path.name}: dropped: sizes of edges, which sizes of nodes contain; "
                "'layerId', 'isBackwardNode'",
            ),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _machine(data: Mapping[str, Any]) -> tuple[int, int, float]:
    """Accelerators, CPUs, bytes of an accelerator."""
    row = read_object(data, "", _HEAD)
    numbers = [read_integer(row[key], key) for key in ("maxFPGAs", "maxCPUs")]
    if min(numbers) < 0 or not 1 <= sum(numbers) <= _MOST_DEVICES:
        raise InputError(f"maxFPGAs, maxCPUs: from 1 to {_MOST_DEVICES} devices, got {numbers}")
    room_bytes = read_number(row["maxSizePerFPGA"], "maxSizePerFPGA")
    if room_bytes < 0:
        raise InputError(f"maxSizePerFPGA: must be at least 0, got {room_bytes:g}")
    return numbers[0], numbers[1], room_bytes


def _ends(nodes: Table, edges: Table) -> tuple[list[int], list[int]]:
    """Places of the nodes that edges come from and go to."""
    number = {one: v for v, one in enumerate(nodes.integers("id"))}
    if len(number) < len(nodes.rows):
        raise InputError("nodes: an id is there twice")
    ends = edges.integers("sourceId"), edges.integers("destId")
    for e, pair in enumerate(zip(*ends, strict=True)):
        if unknown := [one for one in pair if one not in number]:
            raise InputError(f"edges[{e}]: no node {unknown[0]}")
    return [number[one] for one in ends[0]], [number[one] for one in ends[1]]


def _op_seconds(nodes: Table, num_accelerators: int, num_cpus: int) -> np.ndarray:
    cpu_V, accelerator_V = (
        np.array(nodes.numbers(key)) * _MS for key in ("cpuLatency", "fpgaLatency")
    )
    able_V = np.array(nodes.values("supportedOnFpga", _truth), dtype=bool)
    accelerator_V = np.where(able_V, accelerator_V, _NEVER)
    columns = [accelerator_V] * num_accelerators + [cpu_V] * num_cpus
    return np.stack(columns, axis=1)


def _truth(value: object, where: str) -> bool:
    return value if isinstance(value, bool) else bool(read_integer(value, where))


def machine_of(path: str | Path) -> list[dict[str, Any]]:
    """The devices of a profiled network, as `doppler.cluster.custom` takes them.

    Raises:
        InputError: no such file.
    """
    data = read_json(path)
    if not is_profiled(data):
        raise InputError(f"{path}: not a profiled network, which says on what machine it belongs")
    try:
        return devices_of(*_machine(data))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def devices_of(
    num_accelerators: int, num_cpus: int, accelerator_bytes: float
) -> list[dict[str, Any]]:
    """Accelerators, then CPUs; their speeds are of use where a graph has no times of its own."""
    kinds = [(ACCELERATOR, accelerator_bytes)] * num_accelerators + [
        (CPU, _ENOUGH_BYTES)
    ] * num_cpus
    return [
        {
            **{"name": f"{kind}:{i}", "flop_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e11},
            **{"launch_overhead_s": 0.0, "memory_bytes": room},
        }
        for i, (kind, room) in enumerate(kinds)
    ]
