"""Partition: how a tensor, or the join space of an op, is cut into blocks."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from doppler.einsum.program import Einsum, Formation, Input, Program, Splits
from doppler.errors import InputError
from doppler.graph.dataflow import Box


@dataclass(frozen=True)
class Partition:
    """Per dimension the cut points ``0 < ... < extent``; blocks are numbered row-major."""

    cuts: tuple[tuple[int, ...], ...]

    @property
    def num_blocks(self) -> int:
        """How many blocks there are; 1 for a scalar."""
        return math.prod(len(cuts) - 1 for cuts in self.cuts)

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Box]]:
        """The place and the box of every block, in the order of their numbers."""
        places = product(*(range(len(cuts) - 1) for cuts in self.cuts))
        return zip(places, product(*(pairwise(cuts) for cuts in self.cuts)), strict=True)

    def overlapping(self, box: Box) -> Iterator[tuple[int, Box]]:
        """The numbers of the blocks that share elements with a box, and what they share."""
        spans = [
            range(bisect_right(cuts, start) - 1, bisect_left(cuts, stop))
            for (start, stop), cuts in zip(box, self.cuts, strict=True)
        ]
        for place in product(*spans):
            number, shared = 0, []
            for (start, stop), cuts, i in zip(box, self.cuts, place, strict=True):
                number = number * (len(cuts) - 1) + i
                shared.append((max(start, cuts[i]), min(stop, cuts[i + 1])))
            yield number, tuple(shared)


def _even_cuts(extent: int, parts: int) -> tuple[int, ...]:
    # Rounding down every multiple, unlike handing the remainder to the first parts, makes the cuts
    # of 2 parts also cuts of 4: splits that divide each other stay aligned on any extent.
    return tuple(extent * part // parts for part in range(parts + 1))


def partition_nodes(program: Program, splits: Splits) -> list[Partition]:
    """Per node its partition: of the join space for an Einsum, of the tensor for any other.

    A formation is split as the output of its op is, an input by the common refinement of what its
    consumers read.

    Args:
        program: what is split.
        splits: per Einsum, by name, into how many near-equal parts each join dimension is split.

    Raises:
        InputError: names the op whose splits are missing or impossible.
    """
    partitions: list[Partition] = []
    for node in program.nodes:
        if isinstance(node, Einsum):
            parts = _checked_splits(node, splits)
            partitions.append(Partition(tuple(map(_even_cuts, node.extents, parts))))
        elif isinstance(node, Formation):
            partitions.append(Partition(partitions[node.operand].cuts[: len(node.shape)]))
        else:
            partitions.append(Partition(tuple((0, extent) for extent in node.shape)))
    for node, partition in zip(program.nodes, list(partitions), strict=True):
        if isinstance(node, Einsum):
            for operand, dims in zip(node.operands, node.operand_dims, strict=True):
                if isinstance(program.nodes[operand], Input):
                    seen = tuple(partition.cuts[dim] for dim in dims)
                    partitions[operand] = _common_refinement(partitions[operand], seen)
    return partitions


def _common_refinement(partition: Partition, cuts: tuple[tuple[int, ...], ...]) -> Partition:
    both = zip(partition.cuts, cuts, strict=True)
    return Partition(tuple(tuple(sorted({*own, *other})) for own, other in both))


def _checked_splits(node: Einsum, splits: Splits) -> tuple[int, ...]:
    parts = splits.get(node.name, ())
    if len(parts) != len(node.extents):
        raise InputError(
            f"op {node.name!r}: {len(parts)} splits given for its {len(node.extents)} dimensions "
            f"({', '.join(node.indices)})"
        )
    for dim, count in enumerate(parts):
        fault = node.split_fault(dim, count)
        if fault:
            raise InputError(f"op {node.name!r}: {fault}")
    return parts
