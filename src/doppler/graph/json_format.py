"""The JSON format, versions 1 and 2, with everything that a DataflowGraph holds (docs/formats.md).

Each row is on its own line, so that people can read it and a diff of two graphs is meaningful.
"""

import json
from pathlib import Path
from typing import Any

from doppler.graph.alternatives import alternative_rows, read_alternatives
from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, Ops
from doppler.graph.given_costs import (
    edge_entry,
    given_costs,
    op_entry,
    read_edge_entry,
    read_op_entry,
)
from doppler.graph.kernel import Box, KernelSpec, Read, Tensor
from doppler.graph.torch_operators import check_file_kernel
from doppler.support.errors import InputError
from doppler.support.files.values import (
    Table,
    check_version,
    fault,
    read_flag,
    read_integer,
    read_integers,
    read_list,
    read_object,
    read_shape,
    read_text,
)

FORMAT, VERSION = "doppler-graph", 2

_OP_KEYS = (
    *("name", "kind", "dtype", "flops", "read_bytes", "output_bytes", "node", "block"),
    *("box", "kernel", "reads", "given_seconds"),
)
_NEW_OP_KEYS = ("group", "pinned", "alternatives")  # of version 2
_EDGE_KEYS = ("src", "dst", "bytes", "region", "given_seconds")
_INPUT_KEYS = ("name", "node", "block", "bytes", "consumers", "box")
_KERNEL_KEYS = ("expression", "operand_shapes", "operand_dtypes", "output_shape", "dtype")

# --- Writing --------------------------------------------------------------------------------------


def render_json(graph: DataflowGraph) -> str:
    """Return the content of a file.

    Args:
        graph: to write.
    """
    head = {"format": FORMAT, "version": VERSION, "name": graph.name}
    if graph.given_costs is not None:
        head["counts_memory"] = graph.given_costs.counts_memory
    tables = {
        "ops": _op_rows(graph),
        "edges": _edge_rows(graph),
        "inputs": _input_rows(graph.inputs),
        "tensors": [_tensor_row(tensor) for tensor in graph.tensors],
    }
    body = ",\n".join(
        f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for key, rows in tables.items()
    )
    return json.dumps(head)[:-1] + ",\n" + body + "}\n"


def _op_rows(graph: DataflowGraph) -> list[dict[str, Any]]:
    ops, given = graph.ops, graph.given_costs
    rows = []
    for v in range(graph.num_ops):
        row: dict[str, Any] = {
            "name": ops.names[v],
            "kind": ops.kinds[v],
            "dtype": ops.dtypes[v],
            "flops": float(ops.flops[v]),
            "read_bytes": float(ops.read_bytes[v]),
            "output_bytes": float(ops.output_bytes[v]),
            "node": int(ops.node[v]),
            "block": int(ops.block[v]),
            **{
                key: int(column[v])
                for key, column in (("group", ops.group), ("pinned", ops.pinned))
                if column[v] >= 0
            },
        }
        if ops.boxes:
            row["box"] = ops.boxes[v]
        kernel = ops.kernels[v] if ops.kernels else None
        if kernel is not None:
            row["kernel"] = vars(kernel)
        if ops.reads:
            row["reads"] = [_read_row(read) for read in ops.reads[v]]
        if ops.alternatives and ops.alternatives[v]:
            row["alternatives"] = alternative_rows(ops.alternatives[v])
        if given is not None:
            row.update(op_entry(given, v))
        rows.append(row)
    return rows


def _read_row(read: Read) -> dict[str, Any]:
    row = {
        "operand": read.operand,
        "input" if read.from_input else "op": read.source,
        "box": read.box,
    }
    return row if not any(read.start) else {**row, "start": read.start}


def _edge_rows(graph: DataflowGraph) -> list[dict[str, Any]]:
    edges, given = graph.edges, graph.given_costs
    rows = []
    for e in range(graph.num_edges):
        row: dict[str, Any] = {
            "src": int(edges.src[e]),
            "dst": int(edges.dst[e]),
            "bytes": float(edges.bytes[e]),
            "region": int(edges.region[e]),
        }
        if given is not None:
            row.update(edge_entry(given, e))
        rows.append(row)
    return rows


def _input_rows(inputs: Inputs) -> list[dict[str, Any]]:
    return [
        {
            "name": inputs.names[i],
            "node": int(inputs.node[i]),
            "block": int(inputs.block[i]),
            "bytes": float(inputs.bytes[i]),
            "consumers": inputs.consumers[i],
            **({"box": inputs.boxes[i]} if inputs.boxes else {}),
        }
        for i in range(len(inputs))
    ]


def _tensor_row(tensor: Tensor) -> dict[str, Any]:
    row = {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype}
    return {**row, "is_output": True} if tensor.is_output else row


# --- Reading --------------------------------------------------------------------------------------


def parse_graph(data: Any, path: Path) -> DataflowGraph:
    """Make a graph from the content of a JSON file.

    Args:
        data: its content.
        path: of the file, for messages.

    Raises:
        InputError: names the file, and the row at fault.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path}: not a {FORMAT} file (no 'format': '{FORMAT}')")
    try:
        is_new = check_version(data, 1, VERSION) == VERSION
        new_keys = ("counts_memory",) if is_new else ()
        optional = ("name", "edges", "inputs", "tensors", *new_keys)
        read_object(data, "", ("format", "version", "ops"), optional)
        ops = Table(data, "ops", (*_OP_KEYS, *_NEW_OP_KEYS) if is_new else _OP_KEYS)
        edges = Table(data, "edges", _EDGE_KEYS)
        given = _given_costs(data, ops, edges) if is_new else _old_given_costs(ops, edges)
        return DataflowGraph(
            name=read_text(data.get("name", path.stem), "name"),
            ops=_ops(ops),
            edges=Edges.make(
                src=edges.integers("src"),
                dst=edges.integers("dst"),
                region=edges.integers("region", 0),
                bytes=edges.numbers("bytes", 0.0),
            ),
            inputs=_inputs(Table(data, "inputs", _INPUT_KEYS)),
            given_costs=given,
            tensors=read_list(data.get("tensors", []), "tensors", _tensor),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _given_costs(data: dict[str, Any], ops: Table, edges: Table) -> GivenCosts | None:
    """Read seconds of ops, of edges, or of both; memory counts unless the file says otherwise."""
    key, has_edges = "given_seconds", edges.has("given_seconds") or not edges.rows
    return given_costs(
        ops.values(key, read_op_entry) if ops.has(key) else None,
        edges.values(key, read_edge_entry) if has_edges and (edges.rows or ops.has(key)) else None,
        counts_memory=read_flag(data.get("counts_memory", True), "counts_memory"),
    )


def _old_given_costs(ops: Table, edges: Table) -> GivenCosts | None:
    """Read version 1: numbers for all ops and edges; memory does not count."""
    if not (ops.has("given_seconds") or edges.has("given_seconds")):
        return None
    return GivenCosts.make(
        op_seconds=ops.numbers("given_seconds"),
        transfer_seconds=edges.numbers("given_seconds"),
    )


def _ops(table: Table) -> Ops:
    return Ops.make(
        names=table.texts("name", lambda v: f"op{v}"),
        kinds=table.texts("kind", lambda v: "op"),
        dtypes=table.texts("dtype", lambda v: "f32"),
        flops=table.numbers("flops", 0.0),
        read_bytes=table.numbers("read_bytes", 0.0),
        output_bytes=table.numbers("output_bytes", 0.0),
        node=table.integers("node", -1),
        block=table.blocks(),
        group=table.integers("group", -1),
        pinned=table.integers("pinned", -1),
        kernels=table.values("kernel", _kernel) if table.has("kernel") else (),
        reads=table.values("reads", _reads, default=[]) if table.has("reads") else (),
        boxes=table.values("box", _box) if table.has("box") else (),
        alternatives=(
            table.values("alternatives", read_alternatives) if table.has("alternatives") else ()
        ),
    )


def _inputs(table: Table) -> Inputs:
    return Inputs.make(
        names=table.texts("name", lambda i: f"input{i}"),
        node=table.integers("node", -1),
        block=table.blocks(),
        bytes=table.numbers("bytes", 0.0),
        consumers=table.values("consumers", read_integers, default=[]),
        boxes=table.values("box", _box) if table.has("box") else (),
    )


def _box(value: object, where: str) -> Box:
    """Read a list of [start, stop]."""
    if not isinstance(value, list):
        raise fault(where, "a list of [start, stop]", value)
    spans = []
    for one in value:
        span = read_integers(one, where)
        if len(span) != 2:
            raise fault(where, "[start, stop]", one)
        spans.append((span[0], span[1]))
    return tuple(spans)


def _kernel(value: object, where: str) -> KernelSpec | None:
    if value is None:
        return None
    row = read_object(value, where, _KERNEL_KEYS)
    expression = read_text(row["expression"], f"{where}.expression")
    check_file_kernel(expression, f"{where}.expression")
    return KernelSpec(
        expression=expression,
        operand_shapes=read_list(row["operand_shapes"], f"{where}.operand_shapes", read_shape),
        operand_dtypes=read_list(row["operand_dtypes"], f"{where}.operand_dtypes", read_text),
        output_shape=read_shape(row["output_shape"], f"{where}.output_shape"),
        dtype=read_text(row["dtype"], f"{where}.dtype"),
    )


def _reads(value: object, where: str) -> tuple[Read, ...]:
    return read_list(value, where, _read)


def _read(value: object, where: str) -> Read:
    row = read_object(value, where, ("operand", "box"), ("op", "input", "start"))
    if ("op" in row) == ("input" in row):
        raise InputError(f"{where}: expected either 'op' or 'input'")
    source = "input" if "input" in row else "op"
    box = _box(row["box"], f"{where}.box")
    return Read(
        operand=read_integer(row["operand"], f"{where}.operand"),
        source=read_integer(row[source], f"{where}.{source}"),
        from_input=source == "input",
        box=box,
        start=read_integers(row.get("start", [0] * len(box)), f"{where}.start"),
    )


def _tensor(row: object, where: str) -> Tensor:
    row = read_object(row, where, ("name", "shape", "dtype"), ("is_output",))
    return Tensor(
        name=read_text(row["name"], f"{where}.name"),
        shape=read_shape(row["shape"], f"{where}.shape"),
        dtype=read_text(row["dtype"], f"{where}.dtype"),
        is_output=read_flag(row.get("is_output", False), f"{where}.is_output"),
    )
