"""Graph files: our JSON format, and the text format of the published graphs.

JSON, version 1 (docs/formats.md documents it)::

    {"format": "doppler-graph", "version": 1, "name": ...,
     "ops": [{"name", "kind", "dtype", "flops", "read_bytes", "output_bytes", "node", "block",
              "kernel"?, "given_seconds"?}, ...],
     "edges": [{"src", "dst", "bytes", "region", "given_seconds"?}, ...],
     "inputs": [{"name", "node", "block", "bytes", "consumers"}, ...]}

Published text: line 1 the number of blocks, inputs included; line 2 the ids of the input blocks;
lines 3 and 4 edge sources and destinations, inputs removed and ids compacted; then one line
``comp,comm[,kind]`` per op. The file gives ``comp * 1e-10`` seconds per op and ``comm * 1e-10`` per
transfer (Yao et al., ICLR 2026, released graphs).
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import InputError
from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, KernelSpec, Ops

FORMAT, VERSION = "doppler-graph", 1
PUBLISHED_SECONDS_PER_COST = 1e-10
_OP_NUMBERS = ("flops", "read_bytes", "output_bytes")


def load_graph(path: str | Path, *, name: str | None = None) -> DataflowGraph:
    """Read a graph; the suffix ``.json`` means JSON, anything else the published text format.

    name: of the graph, instead of the one in the file or the file's own.

    Raises:
        InputError: names the file, and the line, op or edge at fault.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"{path}: {reason}") from error
    graph = _parse_json(text, path) if path.suffix == ".json" else _parse_text(text, path)
    return graph if name is None else dataclasses.replace(graph, name=name)


def write_atomically(path: str | Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old or the new content."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def save_json(graph: DataflowGraph, path: str | Path) -> None:
    """Write the JSON format."""
    ops, edges, inputs, given = graph.ops, graph.edges, graph.inputs, graph.given_costs
    op_rows = []
    for v in range(graph.num_ops):
        row: dict[str, Any] = {
            "name": ops.names[v],
            "kind": ops.kinds[v],
            "dtype": ops.dtypes[v],
            **{column: float(getattr(ops, column)[v]) for column in _OP_NUMBERS},
            "node": int(ops.node[v]),
            "block": int(ops.block[v]),
        }
        kernel = ops.kernels[v] if ops.kernels else None
        if kernel is not None:
            row["kernel"] = dataclasses.asdict(kernel)
        if given is not None:
            row["given_seconds"] = float(given.op_seconds[v])
        op_rows.append(row)
    edge_rows = []
    for e in range(graph.num_edges):
        row = {
            "src": int(edges.src[e]),
            "dst": int(edges.dst[e]),
            "bytes": float(edges.bytes[e]),
            "region": int(edges.region[e]),
        }
        if given is not None:
            row["given_seconds"] = float(given.transfer_seconds[e])
        edge_rows.append(row)
    input_rows = [
        {
            "name": inputs.names[i],
            "node": int(inputs.node[i]),
            "block": int(inputs.block[i]),
            "bytes": float(inputs.bytes[i]),
            "consumers": list(inputs.consumers[i]),
        }
        for i in range(len(inputs))
    ]
    head = {"format": FORMAT, "version": VERSION, "name": graph.name}
    tables = {"ops": op_rows, "edges": edge_rows, "inputs": input_rows}
    # One row a line: a person can read it, and a diff of two graphs says something.
    body = ",\n".join(
        f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for key, rows in tables.items()
    )
    write_atomically(path, json.dumps(head)[:-1] + ",\n" + body + "}\n")


def save_text(graph: DataflowGraph, path: str | Path) -> None:
    """Write the published text format, with kinds.

    ``comp`` and ``comm`` are the given costs where the graph has them, else floating-point
    operations and output bytes. Input blocks are numbered among the ops by (node, block).

    Raises:
        InputError: what the format cannot say: two regions between one pair of ops, a kind with a
            comma or line break.
    """
    ops, inputs, given = graph.ops, graph.inputs, graph.given_costs
    _check_text_can_say(graph)
    if given is not None:
        comp = given.op_seconds / PUBLISHED_SECONDS_PER_COST
        comm = ops.output_bytes.copy()
        comm[graph.edges.src] = given.transfer_seconds / PUBLISHED_SECONDS_PER_COST
    else:
        comp, comm = ops.flops, ops.output_bytes
    keys = [(int(n), int(b), 1) for n, b in zip(ops.node, ops.block, strict=True)]
    keys += [(int(n), int(b), 0) for n, b in zip(inputs.node, inputs.block, strict=True)]
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    input_ids = [place for place, i in enumerate(order) if i >= graph.num_ops]
    lines = [
        str(len(keys)),
        "".join(f"{i}, " for i in input_ids),
        ", ".join(str(v) for v in graph.edges.src),
        ", ".join(str(v) for v in graph.edges.dst),
        *(
            f"{round(a)},{round(b)},{kind}"
            for a, b, kind in zip(comp, comm, ops.kinds, strict=True)
        ),
    ]
    write_atomically(path, "\n".join(lines) + "\n")


def _check_text_can_say(graph: DataflowGraph) -> None:
    edges = graph.edges
    pair_E = edges.src * graph.num_ops + edges.dst
    if len(np.unique(pair_E)) < len(pair_E):
        raise InputError(
            f"graph {graph.name!r}: two regions between one pair of ops: the text format has no "
            "regions, write JSON"
        )
    for v, kind in enumerate(graph.ops.kinds):
        if set(kind) & set(",\r\n"):
            raise InputError(f"graph {graph.name!r}: op {v}: kind {kind!r} breaks the text format")


def _integers(line: str, path: Path, number: int) -> list[int]:
    values = []
    for word in line.replace(",", " ").split():
        try:
            values.append(int(word))
        except ValueError:
            raise InputError(f"{path}:{number}: {word!r} is not an integer") from None
    return values


def _parse_text(text: str, path: Path) -> DataflowGraph:
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) < 5:
        raise InputError(
            f"{path}:{len(lines) + 1}: file ends early: a published graph has the number of "
            "blocks, the input ids, edge sources, edge destinations, then one line per op"
        )
    count = _integers(lines[0], path, 1)
    if len(count) != 1 or count[0] < 1:
        raise InputError(f"{path}:1: expected the number of blocks, found {lines[0]!r}")
    num_blocks = count[0]
    input_ids = _integers(lines[1], path, 2)
    bad = [i for i in input_ids if not 0 <= i < num_blocks]
    if bad or len(set(input_ids)) != len(input_ids):
        raise InputError(
            f"{path}:2: input ids must be distinct and below {num_blocks}"
            + (f", found {bad[0]}" if bad else "")
        )
    src, dst = _integers(lines[2], path, 3), _integers(lines[3], path, 4)
    if len(src) != len(dst):
        raise InputError(f"{path}:4: {len(dst)} edge destinations for {len(src)} sources")
    num_ops = num_blocks - len(input_ids)
    if len(lines) != 4 + num_ops:
        raise InputError(
            f"{path}:{min(len(lines), 4 + num_ops) + 1}: {len(lines) - 4} op lines for "
            f"{num_ops} ops ({num_blocks} blocks less {len(input_ids)} inputs)"
        )
    comp, comm, kinds = np.empty(num_ops), np.empty(num_ops), []
    for v, line in enumerate(lines[4:]):
        fields = [field.strip() for field in line.split(",")]
        try:
            if len(fields) not in (2, 3):
                raise ValueError
            comp[v], comm[v] = float(fields[0]), float(fields[1])
        except ValueError:
            raise InputError(f"{path}:{v + 5}: expected comp,comm[,kind], found {line!r}") from None
        for value in (comp[v], comm[v]):
            if not (np.isfinite(value) and value >= 0):
                raise InputError(
                    f"{path}:{v + 5}: op {v} has cost {value:g}: must be finite and not negative"
                )
        kinds.append(fields[2] if len(fields) == 3 else "op")
    for number, ids in ((3, src), (4, dst)):
        for v in ids:
            if not 0 <= v < num_ops:
                raise InputError(
                    f"{path}:{number}: edge to unknown op {v}: the ops are 0 to {num_ops - 1}"
                )
    taken = set(input_ids)
    op_ids = [i for i in range(num_blocks) if i not in taken]
    comm_E = comm[np.array(src, dtype=np.int64)]
    try:
        return DataflowGraph(
            name=path.stem,
            # The file does not say which blocks belong together: node -1, and as block the id
            # that the file counts by, so that `save_text` puts inputs back where they were.
            ops=Ops.make(flops=comp, output_bytes=comm, kinds=kinds, block=op_ids),
            edges=Edges.make(src=src, dst=dst, bytes=comm_E),
            inputs=Inputs.make(
                names=[f"input{i}" for i in input_ids],
                block=input_ids,
                bytes=np.zeros(len(input_ids)),
                consumers=[()] * len(input_ids),
            ),
            given_costs=GivenCosts.make(
                op_seconds=comp * PUBLISHED_SECONDS_PER_COST,
                transfer_seconds=comm_E * PUBLISHED_SECONDS_PER_COST,
            ),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _parse_json(text: str, path: Path) -> DataflowGraph:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers too long, brackets too deep
        raise InputError(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path}: not a {FORMAT} file (no 'format': '{FORMAT}')")
    if data.get("version") != VERSION:
        raise InputError(f"{path}: version {data.get('version')!r}, this program reads {VERSION}")
    try:
        ops, edges, inputs = (_Table(data, key) for key in ("ops", "edges", "inputs"))
        given = None
        if ops.has("given_seconds") or edges.has("given_seconds"):
            given = GivenCosts.make(
                op_seconds=ops.numbers("given_seconds"),
                transfer_seconds=edges.numbers("given_seconds"),
            )
        kernels = ()
        if ops.has("kernel"):
            kernels = [
                _kernel(row.get("kernel"), f"ops[{v}].kernel") for v, row in enumerate(ops.rows)
            ]
        return DataflowGraph(
            name=str(data.get("name", path.stem)),
            ops=Ops.make(
                names=[str(row.get("name", f"op{v}")) for v, row in enumerate(ops.rows)],
                kinds=[str(row.get("kind", "op")) for row in ops.rows],
                dtypes=[str(row.get("dtype", "f32")) for row in ops.rows],
                flops=ops.numbers("flops", 0.0),
                read_bytes=ops.numbers("read_bytes", 0.0),
                output_bytes=ops.numbers("output_bytes", 0.0),
                node=ops.integers("node", -1),
                block=ops.integers("block", None),
                kernels=kernels,
            ),
            edges=Edges.make(
                src=edges.integers("src"),
                dst=edges.integers("dst"),
                region=edges.integers("region", 0),
                bytes=edges.numbers("bytes", 0.0),
            ),
            inputs=Inputs.make(
                names=[str(row.get("name", f"input{i}")) for i, row in enumerate(inputs.rows)],
                node=inputs.integers("node", -1),
                block=inputs.integers("block", None),
                bytes=inputs.numbers("bytes", 0.0),
                consumers=[
                    _integers_of(row.get("consumers", []), f"inputs[{i}].consumers")
                    for i, row in enumerate(inputs.rows)
                ],
            ),
            given_costs=given,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


class _Table:
    """Rows of one list of the JSON file, read column by column with errors that name the row."""

    def __init__(self, data: dict, key: str) -> None:
        self.key = key
        self.rows = data.get(key, [])
        if not isinstance(self.rows, list) or not all(isinstance(row, dict) for row in self.rows):
            raise InputError(f"{key!r} must be a list of objects")

    def has(self, column: str) -> bool:
        return any(column in row for row in self.rows)

    def numbers(self, column: str, default: float | None = None) -> list[float]:
        values = []
        for i, row in enumerate(self.rows):
            value = row.get(column, default)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{self.key}[{i}].{column}: expected a number, found {value!r}")
            try:
                values.append(float(value))
            except OverflowError:
                raise InputError(f"{self.key}[{i}].{column}: the number is too large") from None
        return values

    def integers(self, column: str, default: int | None = -2) -> list[int]:
        """Default None numbers the rows; no default (-2) makes the column required."""
        values = []
        for i, row in enumerate(self.rows):
            fallback = i if default is None else None if default == -2 else default
            values.append(_integer(row.get(column, fallback), f"{self.key}[{i}].{column}"))
        return values


def _integer(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: expected an integer, found {value!r}")
    if abs(value) >= 2**63:
        raise InputError(f"{where}: the integer is too large")
    return value


def _integers_of(values: object, where: str) -> list[int]:
    if not isinstance(values, list):
        raise InputError(f"{where}: expected a list of integers, found {values!r}")
    return [_integer(value, where) for value in values]


def _kernel(data: dict | None, where: str) -> KernelSpec | None:
    if data is None:
        return None
    try:
        return KernelSpec(
            expression=str(data["expression"]),
            operand_shapes=tuple(tuple(shape) for shape in data["operand_shapes"]),
            output_shape=tuple(data["output_shape"]),
            dtype=str(data["dtype"]),
            input_slices=tuple(
                tuple((start, stop) for start, stop in box) for box in data.get("input_slices", ())
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: no kernel: {error!r}") from None
