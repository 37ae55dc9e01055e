"""Describes how the ops compute each tensor, in terms of tensor relations.

A tensor that is cut into blocks is a relation of blocks. An op joins blocks of its operands by the
indices that they share, and aggregates over indices that its result lacks. A tensor that is read in
other blocks than it was made in is repartitioned.

Source: tensor-relational algebra, arXiv 2009.00524.
"""

import re
from collections import defaultdict

from doppler.graph import DataflowGraph
from doppler.report.description import aligned
from doppler.trace.usage import bytes_text

_MAX_ROWS = 60


def relation_lines(graph: DataflowGraph) -> list[str]:
    """Return a line for each tensor that is split or repartitioned; equal layers share a line.

    Args:
        graph: to describe.
    """
    if not (graph.tensors and graph.ops.reads and graph.ops.boxes and graph.ops.kernels):
        return []
    times: dict[tuple[str, ...], int] = defaultdict(int)
    for row in _Relations(graph).rows():
        times[tuple(re.sub(r"(?<![\w])\d+(?=\.[A-Za-z_])", "*", cell) for cell in row)] += 1
    if not times:
        return []
    rows = [
        (f"{row[0]} ({num} times)" if num > 1 else row[0], *row[1:]) for row, num in times.items()
    ]
    more = [f"... and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
    head = ("tensor", "join", "aggregation", "repartition")
    return [*aligned([head, *rows[:_MAX_ROWS]]), *more]


class _Relations:
    """Which tensors each op of the program reads, and how tensors and reads are cut."""

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.ops_of: dict[int, list[int]] = defaultdict(list)
        for v, number in enumerate(graph.ops.node.tolist()):
            self.ops_of[number].append(v)

    def rows(self) -> list[tuple[str, str, str, str]]:
        found = []
        for number, ops in self.ops_of.items():
            repartition = self._repartition(ops)
            if len(ops) > 1 or repartition:
                name = self.graph.tensors[number].name
                row = (name, self._join(ops), self._aggregation(ops), repartition or "-")
                found.append(row)
        return found

    def _join(self, ops: list[int]) -> str:
        """The blocks of each operand that are joined: ``ab[2,1] x bc[1,4]: 8 ops``."""
        kernel = self.graph.ops.kernels[ops[0]]
        assert kernel is not None
        notation = kernel.expression.partition(":")[0]
        indices = notation.partition("->")[0].split(",") if "->" in notation else []
        operands = []
        for k in range(len(kernel.operand_shapes)):
            label = indices[k] if indices else notation
            operands.append(f"{label}[{','.join(map(str, self._read_grid(ops, k)))}]")
        return f"{' x '.join(dict.fromkeys(operands)) or notation}: {len(ops)} ops"

    def _aggregation(self, ops: list[int]) -> str:
        """The indices over which kernels aggregate, and the number of partial results added."""
        kernel, graph = self.graph.ops.kernels[ops[0]], self.graph
        assert kernel is not None
        if kernel.expression.startswith("formation:"):
            num = len(kernel.operand_shapes)
            return f"{kernel.expression.partition(':')[2]} of {num} partials"
        notation, _, scalar = kernel.expression.partition(":")
        read, _, written = notation.partition("->")
        summed = "".join(dict.fromkeys(one for one in read if one.isalpha() and one not in written))
        if "->" not in notation or not summed:
            return "-"
        boxes = {graph.ops.boxes[v] for v in ops}
        partials = len(ops) // len(boxes)
        how = scalar.rpartition(":")[2] if scalar else "add"
        return f"{how} over {summed}" + (f", {partials} partials" if partials > 1 else "")

    def _global_box(self, source: int, box: tuple, *, from_input: bool) -> tuple:
        own = (self.graph.inputs if from_input else self.graph.ops).boxes[source]
        return tuple(
            (start + low, start + high) for (start, _), (low, high) in zip(own, box, strict=True)
        )

    def _read_grid(self, ops: list[int], operand: int) -> list[int]:
        """Into how many blocks an operand is cut when it is read, per dimension."""
        starts: list[set[int]] = []
        for v in ops:
            reads = [one for one in self.graph.ops.reads[v] if one.operand == operand]
            if not reads:
                continue
            boxes = [self._global_box(r.source, r.box, from_input=r.from_input) for r in reads]
            starts = starts or [set() for _ in boxes[0]]
            for dim, own in enumerate(starts):
                own.add(min(box[dim][0] for box in boxes))
        return [len(own) for own in starts]

    def _repartition(self, ops: list[int]) -> str:
        """Tensors that are read in other blocks than they were made in, and the bytes between."""
        made: dict[int, set[tuple]] = defaultdict(set)
        read: dict[int, set[tuple]] = defaultdict(set)
        num_bytes: dict[int, float] = defaultdict(float)
        graph = self.graph
        for v in ops:
            for one in graph.ops.reads[v]:
                if one.from_input:
                    continue
                number = int(graph.ops.node[one.source])
                made[number].add(graph.ops.boxes[one.source])
                box = self._global_box(one.source, one.box, from_input=False)
                read[number].add(box)
                held = graph.ops.boxes[one.source]
                share = _size(box) / max(1, _size(held))
                num_bytes[number] += share * float(graph.ops.output_bytes[one.source])
        changes = [
            (number, _grid(made[number]), self._read_by(ops, number))
            for number in made
            if made[number] != read[number] or self._is_gathered(ops, number)
        ]
        return "; ".join(
            f"{graph.tensors[number].name} [{own}] -> [{use}], {bytes_text(num_bytes[number])}"
            for number, own, use in changes
            if own != use  # else a read is a part of one block
        )

    def _is_gathered(self, ops: list[int], number: int) -> bool:
        """Whether some op assembles an operand from several blocks of a tensor."""
        graph = self.graph
        for v in ops:
            if graph.ops.kinds[v] == "formation":
                continue
            seen: set[int] = set()
            for one in graph.ops.reads[v]:
                if not one.from_input and int(graph.ops.node[one.source]) == number:
                    if one.operand in seen:
                        return True
                    seen.add(one.operand)
        return False

    def _read_by(self, ops: list[int], number: int) -> str:
        graph = self.graph
        operand = next(
            one.operand
            for v in ops
            for one in graph.ops.reads[v]
            if not one.from_input and int(graph.ops.node[one.source]) == number
        )
        return ",".join(map(str, self._read_grid(ops, operand)))


def _size(box: tuple) -> int:
    size = 1
    for start, stop in box:
        size *= stop - start
    return size


def _grid(boxes: set[tuple]) -> str:
    first = next(iter(boxes))
    return ",".join(str(len({box[dim][0] for box in boxes})) for dim in range(len(first)))
