"""Lowers a program and its splits to a DataflowGraph: one op per block of each node.

Costs are what the arithmetic needs: floating-point operations, and bytes in the tensors' own dtype.
They are not the costs of the published graph files (published_costs.py).
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from doppler.einsum.partition import Partition, partition_nodes
from doppler.einsum.program import Formation, Input, Node, Program, Splits, box_shape
from doppler.graph import DataflowGraph, Edges, Inputs, KernelSpec, Ops, Read, Tensor
from doppler.graph.kernel import Box
from doppler.graph.scalar import DTYPES


def lower(program: Program, splits: Splits, *, name: str | None = None) -> DataflowGraph:
    """Split every node of a program into blocks, which are the ops of a dataflow graph.

    Ops are ordered by (node, block); ``ops.node`` counts all nodes of the program, including
    inputs. Blocks are numbered row-major over the node's space, output dimensions first. A
    formation is split like the output of its op, an input at every point where a consumer begins or
    ends to read.

    Args:
        program: what to compute.
        splits: by node name, the number of parts of each dimension of the node's space; other nodes
            stay whole.
        name: of the graph; the program's own by default.

    Raises:
        InputError: names the node whose splits are impossible.

    Source: tensor-relational decomposition, arXiv 2009.00524 and 2410.02682.
    """
    blocks = _Blocks(program, partition_nodes(program, splits))
    for number, node in enumerate(program.nodes):
        if isinstance(node, Input):
            blocks.add_input(number, node)
        elif not blocks.stand_for(number, node):
            blocks.add_ops(number, node)
    return blocks.graph(name or program.name)


@dataclass(frozen=True, kw_only=True)
class _Op:
    name: str
    kind: str
    flops: int
    read_bytes: int
    node: int
    block: int
    box: Box
    kernel: KernelSpec
    reads: tuple[Read, ...]


@dataclass(frozen=True, kw_only=True)
class _InputBlock:
    name: str
    node: int
    block: int
    box: Box
    # A dict, because it keeps order; an op that reads the block by two operands is one consumer.
    consumers: dict[int, None] = field(default_factory=dict)


class _Blocks:
    """Collects the blocks of the nodes, which are added in the order of the program."""

    def __init__(self, program: Program, partitions: list[Partition]) -> None:
        self.program = program
        self.partitions = partitions
        # The blocks of a node's tensor. If an aggregation is split, several ops hold parts of each.
        self.tensors = [
            Partition(partition.cuts[: len(node.shape)])
            for node, partition in zip(program.nodes, partitions, strict=True)
        ]
        self.first: dict[int, int] = {}  # first op of each node; first input block of an Input
        self.holders: dict[int, int] = {}  # node that computes a formation without ops of its own
        self.ops: list[_Op] = []
        self.inputs: list[_InputBlock] = []
        self.edge_bytes: dict[tuple[int, int, int], int] = {}  # by (src, dst, region)
        self.regions: defaultdict[int, dict[Box, int]] = defaultdict(dict)

    def add_input(self, number: int, node: Input) -> None:
        self.first[number] = len(self.inputs)
        for block, (place, box) in enumerate(self.partitions[number].blocks()):
            name = _block_name(node.name, place)
            self.inputs.append(_InputBlock(name=name, node=number, block=block, box=box))

    def stand_for(self, number: int, node: Node) -> bool:
        """Let the ops of its operand compute a node too, if they can; return whether they do."""
        if self.program.copies_sums or not isinstance(node, Formation):
            return False
        (source,) = node.operands
        if self._num_partials(source) > 1:
            return False
        self.first[number] = self.first[source]
        self.holders[number] = source
        return True

    def add_ops(self, number: int, node: Node) -> None:
        self.first[number] = len(self.ops)
        for block, (place, box) in enumerate(self.partitions[number].blocks()):
            operands = node.kernel_operands(box)
            flops = node.flops(box)
            if isinstance(node, Formation):
                num_partials = self._num_partials(node.operands[0])
                flops = (num_partials - 1) * math.prod(box_shape(box))
                flops *= 2 if node.dtype == "c64" else 1
                operands *= num_partials
            output = box[: len(node.shape)]
            kernel = KernelSpec(
                expression=node.expression(box),
                operand_shapes=tuple(operand.shape for operand in operands),
                operand_dtypes=tuple(operand.dtype for operand in operands),
                output_shape=box_shape(output),
                dtype=node.dtype,
            )
            reads, read_bytes = [], 0
            for k, operand in enumerate(operands):
                for piece in operand.pieces:
                    source = node.operands[piece.operand]
                    partial = k if isinstance(node, Formation) else 0
                    reads += self._read(source, piece.box, k, piece.start, partial)
                    read_bytes += math.prod(box_shape(piece.box)) * DTYPES[operand.dtype]
            self.ops.append(
                _Op(
                    name=_block_name(node.name, place),
                    kind=node.kind,
                    flops=flops,
                    read_bytes=read_bytes,
                    node=number,
                    block=block,
                    box=output,
                    kernel=kernel,
                    reads=tuple(reads),
                )
            )

    def _read(
        self, source: int, box: Box, operand: int, start: tuple[int, ...], partial: int
    ) -> Iterator[Read]:
        """Make the op that is added next a consumer of a box of a node's tensor."""
        consumer, is_input = len(self.ops), isinstance(self.program.nodes[source], Input)
        for number, own, shared in self.tensors[source].overlapping(box):
            if is_input:
                holder = self.first[source] + number
                self.inputs[holder].consumers[consumer] = None
            else:
                # The aggregated dimensions come last, so the partials of one block are neighbours.
                holder = self.first[source] + number * self._num_partials(source) + partial
                regions = self.regions[holder]
                region = regions.setdefault(shared, len(regions))
                self.edge_bytes[holder, consumer, region] = self._num_bytes(source, shared)
            yield Read(
                operand=operand,
                source=holder,
                from_input=is_input,
                box=tuple(
                    (low - begin, high - begin)
                    for (low, high), (begin, _) in zip(shared, own, strict=True)
                ),
                start=tuple(
                    into + low - begin
                    for into, (low, _), (begin, _) in zip(start, shared, box, strict=True)
                ),
            )

    def _num_partials(self, number: int) -> int:
        """Return how many ops hold partial results of one block of the node's tensor."""
        return self.partitions[number].num_blocks // self.tensors[number].num_blocks

    def _names_of_results(self, outputs: set[int]) -> dict[int, str]:
        """Return the author's names of results, which do not mention formations."""
        names = {}
        for number in outputs:
            node = self.program.nodes[number]
            if isinstance(node, Formation) and number not in self.holders:
                names[number] = self.program.nodes[node.operands[0]].name
                names[node.operands[0]] = f"{names[number]}.partials"
        return names

    def _num_bytes(self, number: int, box: Box) -> int:
        return math.prod(box_shape(box)) * DTYPES[self.program.nodes[number].dtype]

    def graph(self, name: str) -> DataflowGraph:
        ops, inputs, ends = self.ops, self.inputs, list(self.edge_bytes)
        return DataflowGraph(
            name=name,
            ops=Ops.make(
                names=[op.name for op in ops],
                kinds=[op.kind for op in ops],
                dtypes=[op.kernel.dtype for op in ops],
                flops=[op.flops for op in ops],
                read_bytes=[op.read_bytes for op in ops],
                output_bytes=[self._num_bytes(op.node, op.box) for op in ops],
                node=[op.node for op in ops],
                block=[op.block for op in ops],
                kernels=[op.kernel for op in ops],
                reads=[op.reads for op in ops],
                boxes=[op.box for op in ops],
            ),
            edges=Edges.make(
                src=[src for src, _, _ in ends],
                dst=[dst for _, dst, _ in ends],
                region=[region for _, _, region in ends],
                bytes=list(self.edge_bytes.values()),
            ),
            inputs=Inputs.make(
                names=[block.name for block in inputs],
                node=[block.node for block in inputs],
                block=[block.block for block in inputs],
                bytes=[self._num_bytes(block.node, block.box) for block in inputs],
                consumers=[list(block.consumers) for block in inputs],
                boxes=[block.box for block in inputs],
            ),
            tensors=self._tensors(),
        )

    def _tensors(self) -> tuple[Tensor, ...]:
        outputs = set(self.program.outputs)
        names = self._names_of_results(outputs)
        outputs = {self.holders.get(number, number) for number in outputs}
        return tuple(
            Tensor(
                name=names.get(number, node.name),
                shape=node.shape,
                dtype=node.dtype,
                is_output=number in outputs,
            )
            for number, node in enumerate(self.program.nodes)
        )


def _block_name(node_name: str, place: tuple[int, ...]) -> str:
    return f"{node_name}[{','.join(map(str, place))}]"
