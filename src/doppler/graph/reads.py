"""Blocks and reads of an executable graph: which regions they are, and whether they fit together.

If a graph has reads, they must agree with its edges and with the consumers of its inputs. The boxes
that are read of an op are its regions; region labels number them in the order in which the ops, by
number, and their reads first mention them.
"""

from itertools import combinations
from typing import TYPE_CHECKING

from doppler.graph.kernel import Box, Read
from doppler.support.errors import InputError

if TYPE_CHECKING:
    from doppler.graph.dataflow import DataflowGraph


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the extents of a box.

    Args:
        box: (start, stop) of each dimension.
    """
    return tuple(stop - start for start, stop in box)


def regions_of_reads(graph: "DataflowGraph") -> list[list[int]]:
    """Return the number in ``graph.regions`` of each read of each op; -1 for an input.

    Args:
        graph: with reads.

    Raises:
        InputError: names an op whose reads differ from what its edges carry.
    """
    regions, num_ops = graph.regions, graph.num_ops
    first = regions.op_ptr.tolist()
    boxes_of: list[dict[Box, int]] = [{} for _ in range(num_ops)]
    result = []
    is_read: set[tuple[int, int]] = set()
    for v, reads in enumerate(graph.ops.reads):
        numbers = []
        for read in reads:
            region = -1
            if not read.from_input:
                boxes = boxes_of[read.source]
                region = first[read.source] + boxes.setdefault(read.box, len(boxes))
                is_read.add((region, v))
            numbers.append(region)
        result.append(numbers)
    is_carried = set(zip(regions.of_edge.tolist(), graph.edges.dst.tolist(), strict=True))
    num_regions = (regions.op_ptr[1:] - regions.op_ptr[:-1]).tolist()
    # Numbers of boxes beyond an op's regions are those of the next op's.
    if is_read != is_carried or list(map(len, boxes_of)) != num_regions:
        raise _mismatch(graph, boxes_of, is_read, is_carried)
    is_fed = {(i, v) for i, consumers in enumerate(graph.inputs.consumers) for v in consumers}
    is_read = {
        (read.source, v)
        for v, reads in enumerate(graph.ops.reads)
        for read in reads
        if read.from_input
    }
    for i, v in sorted(is_read ^ is_fed):
        does, is_not = ("reads", "not among") if (i, v) in is_read else ("does not read", "among")
        raise InputError(
            f"graph {graph.name!r}: {_op(graph, v)} {does} {_input(graph, i)}, but is {is_not} its "
            "consumers"
        )
    return result


def _mismatch(
    graph: "DataflowGraph",
    boxes_of: list[dict[Box, int]],
    is_read: set[tuple[int, int]],
    is_carried: set[tuple[int, int]],
) -> InputError:
    num_regions = (graph.regions.op_ptr[1:] - graph.regions.op_ptr[:-1]).tolist()
    for v, boxes in enumerate(boxes_of):
        if len(boxes) != num_regions[v]:
            return InputError(
                f"graph {graph.name!r}: {len(boxes)} boxes of {_op(graph, v)} are read, but its "
                f"edges have {num_regions[v]} regions"
            )
    region, v = min(is_read ^ is_carried)
    source = _op(graph, int(graph.regions.src[region]))
    if (region, v) in is_read:
        return InputError(
            f"graph {graph.name!r}: {_op(graph, v)} reads a box of {source} without an edge"
        )
    return InputError(
        f"graph {graph.name!r}: {_op(graph, v)} does not read the box of {source} that its edge "
        "carries"
    )


def check_blocks(graph: "DataflowGraph") -> None:
    """Refuse tensors, boxes, kernels and reads that contradict each other.

    Args:
        graph: to check.

    Raises:
        InputError: names the op or input.
    """
    names = [tensor.name for tensor in graph.tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"graph {graph.name!r}: two tensors are called {twice!r}")
    ops, inputs = graph.ops, graph.inputs
    for v, (number, box) in enumerate(zip(ops.node.tolist(), ops.boxes, strict=False)):
        _check_box(graph, _op(graph, v), number, box)
    for i, (number, box) in enumerate(zip(inputs.node.tolist(), inputs.boxes, strict=False)):
        _check_box(graph, _input(graph, i), number, box)
    for v, (kernel, box) in enumerate(zip(ops.kernels, ops.boxes, strict=False)):
        tensor = graph.tensors[ops.node[v]]
        if kernel and (kernel.output_shape, kernel.dtype) != (box_shape(box), tensor.dtype):
            raise InputError(
                f"graph {graph.name!r}: {_op(graph, v)} computes {kernel.output_shape} of "
                f"{kernel.dtype}, but is the box {box} of the {tensor.dtype} tensor {tensor.name!r}"
            )
    if ops.reads:
        _check_reads(graph)


def _op(graph: "DataflowGraph", v: int) -> str:
    return f"op {v} ({graph.ops.names[v]!r})"


def _input(graph: "DataflowGraph", i: int) -> str:
    return f"input {i} ({graph.inputs.names[i]!r})"


def _fits(box: Box, shape: tuple[int, ...]) -> bool:
    return len(box) == len(shape) and all(
        0 <= start < stop <= extent for (start, stop), extent in zip(box, shape, strict=True)
    )


def _check_box(graph: "DataflowGraph", owner: str, number: int, box: Box) -> None:
    if not 0 <= number < len(graph.tensors):
        raise InputError(
            f"graph {graph.name!r}: {owner} is a block of tensor {number}, but there are "
            f"{len(graph.tensors)} tensors"
        )
    tensor = graph.tensors[number]
    if not _fits(box, tensor.shape):
        raise InputError(
            f"graph {graph.name!r}: {owner} is the box {box} of tensor {tensor.name!r}, whose "
            f"shape is {tensor.shape}"
        )


def _check_reads(graph: "DataflowGraph") -> None:
    ops, inputs = graph.ops, graph.inputs
    if not (ops.kernels and ops.boxes) or None in ops.kernels or len(inputs.boxes) < len(inputs):
        raise InputError(
            f"graph {graph.name!r}: reads need kernels and boxes of all ops, and boxes of inputs"
        )
    held_by_op = [(kernel.output_shape, kernel.dtype) for kernel in ops.kernels if kernel]
    held_by_input = [
        (box_shape(box), graph.tensors[number].dtype)
        for box, number in zip(inputs.boxes, inputs.node.tolist(), strict=True)
    ]
    # Graphs repeat the same few shapes thousands of times, so each is checked once.
    known: set[tuple] = set()
    for v, (kernel, reads) in enumerate(zip(ops.kernels, ops.reads, strict=True)):
        assert kernel is not None
        num, num_dtypes = len(kernel.operand_shapes), len(kernel.operand_dtypes)
        if num != num_dtypes:
            said = f"{_op(graph, v)} has {num} operands and {num_dtypes} dtypes"
            raise InputError(f"graph {graph.name!r}: the kernel of {said}")
        pieces: list[list[Box]] = [[] for _ in kernel.operand_shapes]
        for read in reads:
            holders = held_by_input if read.from_input else held_by_op
            fault = None
            if not 0 <= read.source < len(holders):
                fault = f"{_kind(read)} {read.source}, which does not exist"
            elif not 0 <= read.operand < len(pieces):
                fault = f"operand {read.operand}, but its kernel has {len(pieces)}"
            else:
                held = holders[read.source]
                wanted = kernel.operand_shapes[read.operand], kernel.operand_dtypes[read.operand]
                key = (held, wanted, read.box, read.start)
                if key not in known:
                    fault = _read_fault(read, *held, *wanted)
                    known.add(key)
                pieces[read.operand].append(_target(read))
            if fault:
                raise InputError(f"graph {graph.name!r}: {_op(graph, v)} reads {fault}")
        fault = _overlap_fault(pieces, known)
        if fault:
            raise InputError(f"graph {graph.name!r}: {_op(graph, v)} reads {fault}")


def _overlap_fault(pieces: list[list[Box]], known: set[tuple]) -> str | None:
    for operand, targets in enumerate(pieces):
        if len(targets) > 1 and (key := tuple(targets)) not in known:
            if any(_overlap(one, other) for one, other in combinations(targets, 2)):
                return f"pieces of operand {operand} that overlap"
            known.add(key)
    return None


def _kind(read: Read) -> str:
    return "input" if read.from_input else "op"


def _read_fault(
    read: Read,
    held_shape: tuple[int, ...],
    held_dtype: str,
    operand_shape: tuple[int, ...],
    operand_dtype: str,
) -> str | None:
    if not _fits(read.box, held_shape):
        return f"the box {read.box} of {_kind(read)} {read.source}, which holds {held_shape}"
    if held_dtype != operand_dtype:
        return (
            f"{_kind(read)} {read.source}, which holds {held_dtype}, as {operand_dtype} "
            f"operand {read.operand}"
        )
    if len(read.start) != len(read.box) or not _fits(_target(read), operand_shape):
        return (
            f"{box_shape(read.box)} elements into operand {read.operand} from {read.start} on, "
            f"whose shape is {operand_shape}"
        )
    return None


def _target(read: Read) -> Box:
    """Return the box of the operand that a piece fills."""
    return tuple(
        (into, into + stop - start)
        for into, (start, stop) in zip(read.start, read.box, strict=False)
    )


def _overlap(one: Box, other: Box) -> bool:
    return all(
        max(low, first) < min(high, last)
        for (low, high), (first, last) in zip(one, other, strict=True)
    )
