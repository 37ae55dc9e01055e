"""Time, bytes and memory of a torch module by submodule.

Shape suffix: V ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.graph import DataflowGraph
from doppler.report.description import aligned, quantity
from doppler.trace.usage import bytes_text, time_text

# Lines of a table: the largest parts.
_MAX_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class ModulePart:
    """The ops of one submodule.

    Attributes:
        path: of the submodule.
        num_ops: number of its ops.
        op_s: seconds of its ops, one after the other.
        flops: floating-point operations of its ops.
        moved_bytes: that its ops read and write.
        arriving_bytes: that move to its ops from other devices.
        held_bytes: of parameters and buffers that no other submodule reads.
        devices: on which its ops run.
    """

    path: str
    num_ops: int
    op_s: float
    flops: float
    moved_bytes: float
    arriving_bytes: float
    held_bytes: float
    devices: tuple[int, ...]


def module_paths(graph: DataflowGraph) -> list[str]:
    """Return the submodule of each op [V]; empty for the module itself.

    Submodules are recognised by their parameters, which are inputs of the graph. One without
    parameters counts as part of the module around it. Paths end after the first name that follows a
    number: ``layers.3.mlp``.

    Args:
        graph: of a torch module.
    """
    if not graph.tensors:
        return [""] * graph.num_ops
    known = {
        ".".join(parts[:end])
        for number in set(graph.inputs.node.tolist())
        for parts in [graph.tensors[number].name.split(".")]
        for end in range(1, len(parts))
    }
    of_tensor = [_path_of(tensor.name, known) for tensor in graph.tensors]
    return [of_tensor[number] for number in graph.ops.node.tolist()]


def _path_of(name: str, known: set[str]) -> str:
    parts = name.removeprefix("d_").split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    most = min(len(parts), numbers[0] + 2 if numbers else len(parts))
    for end in range(most, 0, -1):
        if ".".join(parts[:end]) in known:
            return ".".join(parts[:end])
    return ""


def module_parts(
    graph: DataflowGraph,
    op_s_V: NDArray[np.float64],
    device_V: NDArray[np.int64] | None = None,
) -> list[ModulePart]:
    """Return the submodules of a torch module in the order of their ops.

    Args:
        graph: of the module.
        op_s_V: seconds of each op.
        device_V: device of each op; None: not placed.
    """
    ops, edges, paths = graph.ops, graph.edges, np.array(module_paths(graph))
    if set(paths.tolist()) == {""}:
        return []
    arriving_V = np.zeros(graph.num_ops)
    if device_V is not None:
        crosses_E = device_V[edges.src] != device_V[edges.dst]
        np.add.at(arriving_V, edges.dst[crosses_E], edges.bytes[crosses_E])
    held: dict[str, float] = {}
    for consumers, num_bytes in zip(graph.inputs.consumers, graph.inputs.bytes, strict=True):
        readers = {str(paths[v]) for v in consumers}
        if len(readers) == 1:
            (reader,) = readers
            held[reader] = held.get(reader, 0.0) + float(num_bytes)
    parts = []
    for path in dict.fromkeys(paths.tolist()):
        own_V = paths == path
        devices = () if device_V is None else tuple(np.unique(device_V[own_V]).tolist())
        parts.append(
            ModulePart(
                path=path,
                num_ops=int(own_V.sum()),
                op_s=float(op_s_V[own_V].sum()),
                flops=float(ops.flops[own_V].sum()),
                moved_bytes=float((ops.read_bytes + ops.output_bytes)[own_V].sum()),
                arriving_bytes=float(arriving_V[own_V].sum()),
                held_bytes=held.get(path, 0.0),
                devices=devices,
            )
        )
    return parts


def module_lines(parts: Sequence[ModulePart]) -> list[str]:
    """Return the parts as lines of a table; of many parts only those that take longest.

    Args:
        parts: to list.
    """
    if not parts:
        return []
    total_s = sum(part.op_s for part in parts) or 1.0
    least_s = sorted((part.op_s for part in parts), reverse=True)[:_MAX_ROWS][-1]
    shown = [part for part in parts if part.op_s >= least_s][:_MAX_ROWS]
    is_placed = any(part.devices for part in parts)
    head = ("module", "ops", "seconds", "share", "FLOP", "read+written", "held")
    rows: list[tuple[str, ...]] = [(*head, "arriving", "devices") if is_placed else head]
    for part in shown:
        row: tuple[str, ...] = (
            part.path or "(itself)",
            str(part.num_ops),
            time_text(part.op_s),
            f"{part.op_s / total_s:.1%}",
            quantity(part.flops, ""),
            bytes_text(part.moved_bytes),
            bytes_text(part.held_bytes),
        )
        if is_placed:
            row += (bytes_text(part.arriving_bytes), ",".join(map(str, part.devices)))
        rows.append(row)
    more = len(parts) - len(shown)
    return [*aligned(rows), *([f"... and {more} more that take less"] if more else [])]
