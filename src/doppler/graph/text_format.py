"""The text format of the published graphs (docs/formats.md).

Line 1 has the number of blocks, including inputs; line 2 the ids of the input blocks; lines 3 and 4
the sources and destinations of edges, with ids that do not count inputs. Then each op has a line
``comp,comm[,kind]``, which gives ``comp * 1e-10`` seconds for the op and ``comm * 1e-10`` seconds
for each transfer of its output (Yao et al., ICLR 2026, released graphs).

Shape suffixes: V ops, E edges.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, Ops
from doppler.support.errors import InputError

PUBLISHED_SECONDS_PER_COST = 1e-10


def render_text(graph: DataflowGraph) -> str:
    """Return the content of a file, with kinds.

    ``comp`` and ``comm`` are the given costs if the graph has them, otherwise floating-point
    operations and output bytes. Input blocks are numbered among the ops by (node, block).

    Args:
        graph: to write.

    Raises:
        InputError: the format cannot express the graph: two regions between one pair of ops, or a
            kind with a comma or line break.
    """
    ops, inputs, given = graph.ops, graph.inputs, graph.given_costs
    _check_text_can_say(graph)
    if given is not None and given.op_seconds is not None and given.transfer_seconds is not None:
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
    return "\n".join(lines) + "\n"


def _check_text_can_say(graph: DataflowGraph) -> None:
    edges, given = graph.edges, graph.given_costs
    columns = () if given is None else (given.op_seconds, given.transfer_seconds)
    if (
        any(column is None or column.ndim > 1 for column in columns)
        or ((graph.ops.group >= 0) | (graph.ops.pinned >= 0)).any()
    ):
        raise InputError(
            f"graph {graph.name!r}: seconds by device or link, groups and pins: the text format "
            "has none, write JSON"
        )
    pair_E = edges.src * graph.num_ops + edges.dst
    if len(np.unique(pair_E)) < len(pair_E):
        raise InputError(
            f"graph {graph.name!r}: two regions between one pair of ops: the text format has no "
            "regions, write JSON"
        )
    num_regions_V = np.diff(graph.regions.op_ptr)
    if (num_regions_V > 1).any():
        v = int(num_regions_V.argmax())
        raise InputError(
            f"graph {graph.name!r}: op {v} has {num_regions_V[v]} regions: the text format has one "
            "for each op, write JSON"
        )
    if graph.ops.alternatives:
        raise InputError(
            f"graph {graph.name!r}: alternatives: the text format has none, write JSON"
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


def parse_text(text: str, path: Path) -> DataflowGraph:
    """Read the content of a file.

    Args:
        text: of the file.
        path: of the file, for messages and as the graph's name.

    Raises:
        InputError: names the file, and the line, op or edge.
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) < 5:
        raise InputError(
            f"{path}:{len(lines) + 1}: file ends early: a published graph has the number of "
            "blocks, the input ids, edge sources, edge destinations, then one line per op"
        )
    num_blocks, input_ids = _blocks(lines, path)
    src, dst = _integers(lines[2], path, 3), _integers(lines[3], path, 4)
    if len(src) != len(dst):
        raise InputError(f"{path}:4: {len(dst)} edge destinations for {len(src)} sources")
    num_ops = num_blocks - len(input_ids)
    if len(lines) != 4 + num_ops:
        raise InputError(
            f"{path}:{min(len(lines), 4 + num_ops) + 1}: {len(lines) - 4} op lines for "
            f"{num_ops} ops ({num_blocks} blocks less {len(input_ids)} inputs)"
        )
    costs_V2, kinds = _costs_and_kinds(lines[4:], path)
    for number, ids in ((3, src), (4, dst)):
        for v in ids:
            if not 0 <= v < num_ops:
                raise InputError(
                    f"{path}:{number}: edge to unknown op {v}: the ops are 0 to {num_ops - 1}"
                )
    taken = set(input_ids)
    op_ids = [i for i in range(num_blocks) if i not in taken]
    try:
        return _graph(path.stem, costs_V2, kinds, op_ids, input_ids, (src, dst))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _blocks(lines: list[str], path: Path) -> tuple[int, list[int]]:
    """Return the number of blocks, and the ids of the inputs among them."""
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
    return num_blocks, input_ids


def _costs_and_kinds(lines: list[str], path: Path) -> tuple[NDArray[np.float64], list[str]]:
    """Return ``comp`` and ``comm`` [V, 2] of the ops, and their kinds."""
    costs_V2, kinds = np.empty((len(lines), 2)), []
    for v, line in enumerate(lines):
        fields = [field.strip() for field in line.split(",")]
        try:
            if len(fields) not in (2, 3):
                raise ValueError
            costs_V2[v] = float(fields[0]), float(fields[1])
        except ValueError:
            raise InputError(f"{path}:{v + 5}: expected comp,comm[,kind], found {line!r}") from None
        for value in costs_V2[v]:
            if not (np.isfinite(value) and value >= 0):
                raise InputError(
                    f"{path}:{v + 5}: op {v} has cost {value:g}: must be finite and not negative"
                )
        kinds.append(fields[2] if len(fields) == 3 else "op")
    return costs_V2, kinds


def _graph(
    name: str,
    costs_V2: NDArray[np.float64],
    kinds: list[str],
    op_ids: list[int],
    input_ids: list[int],
    ends: tuple[list[int], list[int]],
) -> DataflowGraph:
    comp_V, comm_V = costs_V2.T
    comm_E = comm_V[np.array(ends[0], dtype=np.int64)]
    return DataflowGraph(
        name=name,
        # The file does not say which blocks belong to one node, so nodes are -1. Blocks have the
        # file's ids, so that `save_text` writes inputs at the same places.
        ops=Ops.make(flops=comp_V, output_bytes=comm_V, kinds=kinds, block=op_ids),
        edges=Edges.make(src=ends[0], dst=ends[1], bytes=comm_E),
        inputs=Inputs.make(
            names=[f"input{i}" for i in input_ids],
            block=input_ids,
            bytes=np.zeros(len(input_ids)),
            consumers=[()] * len(input_ids),
        ),
        given_costs=GivenCosts.make(
            op_seconds=comp_V * PUBLISHED_SECONDS_PER_COST,
            transfer_seconds=comm_E * PUBLISHED_SECONDS_PER_COST,
        ),
    )
