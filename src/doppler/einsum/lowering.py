"""Program and splits to DataflowGraph: one op per (node, block), with true costs.

Costs count what the arithmetic needs: floating-point operations, and bytes at the size of the
tensors' own dtype. They do not repeat the units of the published graph files.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from doppler.einsum.partition import Partition, partition_nodes
from doppler.einsum.program import DTYPES, Einsum, Formation, Input, Program, Splits
from doppler.einsum.resolver import parse_program
from doppler.errors import InputError
from doppler.graph import DataflowGraph, Edges, Inputs, KernelSpec, Ops
from doppler.graph.dataflow import Box

_PROJECT = Path(__file__).resolve().parents[3]


def load_workload(
    *,
    program: str,
    name: str | None = None,
    preset: str = "paper",
    params: Mapping[str, int | None] | None = None,
) -> DataflowGraph:
    """Read an einsum program from a file and lower it with the splits that it gives.

    Args:
        program: path of the file, from where the process runs, else from the project's root.
        name: of the graph; the program's own by default.
        preset: which of the declared values the parameters take.
        params: values by parameter name; they win over the preset, None leaves it.

    Raises:
        InputError: if the file cannot be read, or as `parse_program` does.
    """
    path = Path(program)
    if not path.is_absolute() and not path.exists():
        path = _PROJECT / path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(f"{program}: cannot read the program: {reason}") from None
    given = {key: value for key, value in (params or {}).items() if value is not None}
    parsed = parse_program(text, file=program, preset=preset, params=given)
    return lower(parsed, parsed.given_splits, name=name)


def lower(program: Program, splits: Splits, *, name: str | None = None) -> DataflowGraph:
    """Split every node of a program into blocks: the ops of a dataflow graph.

    Ops are ordered by (node, block); ``ops.node`` counts all nodes of the program, inputs too.
    Blocks are numbered row-major over the join space, output dimensions first. A formation is
    split as its op's output is, an input by the common refinement of what its consumers read.

    Args:
        program: what to compute.
        splits: per Einsum, by name, into how many parts each join dimension is split.
        name: of the graph; the program's own by default.

    Raises:
        InputError: names the op whose splits are missing or impossible.

    Source: tensor-relational decomposition, arXiv 2009.00524 and 2410.02682.
    """
    partitions = partition_nodes(program, splits)
    blocks = _Blocks(program, partitions)
    for number, node in enumerate(program.nodes):
        if isinstance(node, Input):
            blocks.add_input(number, node)
        elif isinstance(node, Einsum):
            blocks.add_einsum(number, node)
        else:
            blocks.add_formation(number, node)
    return blocks.graph(name or program.name)


def _block_shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _num_elements(box: Box) -> int:
    return math.prod(_block_shape(box))


@dataclass(frozen=True, kw_only=True)
class _Op:
    name: str
    kind: str
    flops: int
    read_bytes: int
    output_bytes: int
    node: int
    block: int
    kernel: KernelSpec


@dataclass(frozen=True, kw_only=True)
class _InputBlock:
    name: str
    node: int
    block: int
    bytes: int
    # A dict for its order: an op that reads the block by two operands is one consumer.
    consumers: dict[int, None] = field(default_factory=dict)


class _Blocks:
    """Collects the blocks of the nodes, which are added in the order of the program."""

    def __init__(self, program: Program, partitions: list[Partition]) -> None:
        self.nodes = program.nodes
        self.partitions = partitions
        self.first: dict[int, int] = {}  # per node, its first op, or input block of an Input
        self.ops: list[_Op] = []
        self.inputs: list[_InputBlock] = []
        self.edge_bytes: dict[tuple[int, int, int], int] = {}  # by (src, dst, region)
        self.regions: defaultdict[int, dict[Box, int]] = defaultdict(dict)

    def add_input(self, number: int, node: Input) -> None:
        self.first[number] = len(self.inputs)
        for block, (place, box) in enumerate(self.partitions[number].blocks()):
            self.inputs.append(
                _InputBlock(
                    name=_block_name(node.name, place),
                    node=number,
                    block=block,
                    bytes=_num_elements(box) * DTYPES[node.dtype],
                )
            )

    def add_einsum(self, number: int, node: Einsum) -> None:
        self.first[number] = len(self.ops)
        for block, (place, box) in enumerate(self.partitions[number].blocks()):
            slices = tuple(tuple(box[dim] for dim in dims) for dims in node.operand_dims)
            kernel = KernelSpec(
                expression=node.expression,
                operand_shapes=tuple(_block_shape(one) for one in slices),
                output_shape=_block_shape(box[: node.output_rank]),
                dtype=node.dtype,
                input_slices=slices,
            )
            flops = _num_elements(box) * node.flops_per_join_element
            name = _block_name(node.name, place)
            self._add_op(name, node.kind, flops, number, block, node.operands, kernel)

    def add_formation(self, number: int, node: Formation) -> None:
        self.first[number] = len(self.ops)
        num_partials = self._num_partials(node.operand)
        for block, (place, box) in enumerate(self.partitions[number].blocks()):
            kernel = KernelSpec(
                expression=f"formation:{node.aggregation}",
                operand_shapes=(_block_shape(box),) * num_partials,
                output_shape=_block_shape(box),
                dtype=node.dtype,
                input_slices=(box,) * num_partials,
            )
            flops = (num_partials - 1) * _num_elements(box)
            name = _block_name(node.name, place)
            operands = (node.operand,) * num_partials
            self._add_op(name, "formation", flops, number, block, operands, kernel)

    def _add_op(
        self,
        name: str,
        kind: str,
        flops: int,
        node: int,
        block: int,
        operands: tuple[int, ...],
        kernel: KernelSpec,
    ) -> None:
        reads = list(zip(operands, kernel.input_slices, strict=True))
        for operand, box in dict.fromkeys(reads):
            self._connect(operand, box)
        self.ops.append(
            _Op(
                name=name,
                kind=kind,
                flops=flops,
                read_bytes=sum(self._num_bytes(operand, box) for operand, box in reads),
                output_bytes=math.prod(kernel.output_shape) * DTYPES[kernel.dtype],
                node=node,
                block=block,
                kernel=kernel,
            )
        )

    def _connect(self, operand: int, box: Box) -> None:
        """Make the op that is about to be added a consumer of a box of its operand."""
        consumer, rank = len(self.ops), len(self.nodes[operand].shape)
        tensor_blocks = Partition(self.partitions[operand].cuts[:rank])
        for number, shared in tensor_blocks.overlapping(box):
            if isinstance(self.nodes[operand], Input):
                self.inputs[self.first[operand] + number].consumers[consumer] = None
                continue
            # The aggregated dimensions come last, so the partials of one block are neighbours.
            num_partials = self._num_partials(operand)
            first = self.first[operand] + number * num_partials
            for producer in range(first, first + num_partials):
                own = self.regions[producer]
                region = own.setdefault(shared, len(own))
                self.edge_bytes[producer, consumer, region] = self._num_bytes(operand, shared)

    def _num_partials(self, number: int) -> int:
        """How many ops hold a share of one block of the node's tensor."""
        cuts = self.partitions[number].cuts
        return Partition(cuts[len(self.nodes[number].shape) :]).num_blocks

    def _num_bytes(self, number: int, box: Box) -> int:
        return _num_elements(box) * DTYPES[self.nodes[number].dtype]

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
                output_bytes=[op.output_bytes for op in ops],
                node=[op.node for op in ops],
                block=[op.block for op in ops],
                kernels=[op.kernel for op in ops],
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
                bytes=[block.bytes for block in inputs],
                consumers=[list(block.consumers) for block in inputs],
            ),
        )


def _block_name(node_name: str, place: tuple[int, ...]) -> str:
    return f"{node_name}[{','.join(map(str, place))}]"
