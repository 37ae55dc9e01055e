"""Profiled networks: milliseconds on a CPU and on an accelerator, sizes, and groups of ops.

A machine has ``maxFPGAs`` accelerators of ``maxSizePerFPGA`` bytes, then ``maxCPUs`` CPUs with
enough memory. The size of an op, its weights and its output, occupies its device all the time. The
output of an op moves through the memory of the CPUs: it takes ``cost`` to or from an accelerator,
twice that between accelerators, and nothing between CPUs.

Source: Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators",
NeurIPS 2020, and the inputs published with it. Deviation: there one part of the graph at a time
runs on an accelerator, after everything that it reads has arrived; here ops start when they can.
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
# Seconds of an op that an accelerator cannot run; bytes of a CPU, which the file does not give.
_NEVER, _ENOUGH_BYTES = np.inf, 1e15
ACCELERATOR, CPU = "accelerator", "cpu"


def is_profiled(data: Any) -> bool:
    """Return whether the content of a JSON file has the keys of a profiled network.

    Args:
        data: content of the file.
    """
    return isinstance(data, dict) and {"maxFPGAs", "nodes"} <= data.keys()


def parse_profiled(data: Any, path: Path) -> DataflowGraph:
    """Return the graph of a profiled network, for the devices of `machine_of`.

    Args:
        data: content of a JSON file.
        path: of the file, for messages and as the graph's name.

    Raises:
        InputError: names the file and the entry.
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
                # Rows are the producer's kind of device, columns the consumer's.
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
    """Return the number of accelerators, the number of CPUs, and the bytes of an accelerator."""
    row = read_object(data, "", _HEAD)
    numbers = [read_integer(row[key], key) for key in ("maxFPGAs", "maxCPUs")]
    if min(numbers) < 0 or not 1 <= sum(numbers) <= _MOST_DEVICES:
        raise InputError(f"maxFPGAs, maxCPUs: from 1 to {_MOST_DEVICES} devices, got {numbers}")
    room_bytes = read_number(row["maxSizePerFPGA"], "maxSizePerFPGA")
    if room_bytes < 0:
        raise InputError(f"maxSizePerFPGA: must be at least 0, got {room_bytes:g}")
    return numbers[0], numbers[1], room_bytes


def _ends(nodes: Table, edges: Table) -> tuple[list[int], list[int]]:
    """Return the indices of the nodes that edges come from and go to."""
    number = {one: v for v, one in enumerate(nodes.integers("id"))}
    if len(number) < len(nodes.rows):
        raise InputError("nodes: an id is given twice")
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
    """Return the devices of a profiled network, for `doppler.cluster.custom`.

    Args:
        path: of the network's file.

    Raises:
        InputError: the file cannot be read, or is not a profiled network.
    """
    data = read_json(path)
    if not is_profiled(data):
        raise InputError(f"{path}: not a profiled network, which would describe its machine")
    try:
        return devices_of(*_machine(data))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def devices_of(
    num_accelerators: int, num_cpus: int, accelerator_bytes: float
) -> list[dict[str, Any]]:
    """Return accelerators, then CPUs; their speeds matter only to graphs without given costs.

    Args:
        num_accelerators: number of accelerators.
        num_cpus: number of CPUs.
        accelerator_bytes: memory of an accelerator.
    """
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
