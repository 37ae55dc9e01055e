"""Partition: how a tensor, or the space of a node, is cut into blocks."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from doppler.einsum.program import Cuts, Formation, Input, Node, Program, Splits
from doppler.graph.kernel import Box
from doppler.support.errors import InputError

# Largest number of blocks of one node.
_MAX_BLOCKS = 200_000


@dataclass(frozen=True)
class Partition:
    """Cuts along each dimension of a tensor or space; blocks are numbered row-major.

    Attributes:
        cuts: for each dimension the cut points ``0 < ... < extent``.
    """

    cuts: Cuts

    @property
    def num_blocks(self) -> int:
        """Number of blocks; 1 for a scalar."""
        return math.prod(len(cuts) - 1 for cuts in self.cuts)

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Box]]:
        """Yield the position and the box of every block, in the order of their numbers."""
        places = product(*(range(len(cuts) - 1) for cuts in self.cuts))
        return zip(places, product(*(pairwise(cuts) for cuts in self.cuts)), strict=True)

    def overlapping(self, box: Box) -> Iterator[tuple[int, Box, Box]]:
        """Yield the blocks that share elements with a box.

        Args:
            box: to compare with.

        Yields:
            The number of the block, its box, and the box that both share.
        """
        spans = [
            range(bisect_right(cuts, start) - 1, bisect_left(cuts, stop))
            for (start, stop), cuts in zip(box, self.cuts, strict=True)
        ]
        for place in product(*spans):
            number, own, shared = 0, [], []
            for (start, stop), cuts, i in zip(box, self.cuts, place, strict=True):
                number = number * (len(cuts) - 1) + i
                own.append((cuts[i], cuts[i + 1]))
                shared.append((max(start, cuts[i]), min(stop, cuts[i + 1])))
            yield number, tuple(own), tuple(shared)


def even_cuts(extent: int, parts: int, grain: int = 1) -> tuple[int, ...]:
    """Return the cut points of nearly equal parts.

    Args:
        extent: of the dimension.
        parts: number of parts.
        grain: cut points are multiples of it.
    """
    # Every cut point is rounded down. So the cuts of 2 parts are also cuts of 4 parts on any
    # extent, which would not hold if the first parts got the remainder.
    return tuple(extent // grain * part // parts * grain for part in range(parts + 1))


def partition_nodes(program: Program, splits: Splits) -> list[Partition]:
    """Return the partition of every node's space.

    A formation is split like the output of its op, and an input at every point where one of its
    consumers begins or ends to read.

    Args:
        program: to split.
        splits: by node name, the number of nearly equal parts of each dimension of the node's
            space; other nodes stay whole.

    Raises:
        InputError: names a node that is not in the program, or whose splits are impossible or too
            many.
    """
    unknown = sorted(set(splits) - {node.name for node in program.nodes})
    if unknown:
        raise InputError(f"program {program.name!r}: splits for {unknown[0]!r}, which is not an op")
    partitions: list[Partition] = []
    for node in program.nodes:
        if isinstance(node, Formation):
            own = partitions[node.operands[0]].cuts[: len(node.shape)]
        else:
            own = tuple(
                even_cuts(extent, parts, node.grain(dim))
                for dim, (extent, parts) in enumerate(
                    zip(node.space, _checked_splits(node, splits), strict=True)
                )
            )
        partitions.append(Partition(own))
    cuts = _cuts_of_inputs(program, partitions)
    for number, dims in cuts.items():
        partitions[number] = Partition(tuple(tuple(sorted(points)) for points in dims))
    return partitions


def _cuts_of_inputs(program: Program, partitions: list[Partition]) -> dict[int, list[set[int]]]:
    """Return where readers begin and end to read, for each input and each of its dimensions."""
    cuts = {
        number: [{0, extent} for extent in node.shape]
        for number, node in enumerate(program.nodes)
        if isinstance(node, Input)
    }
    for node, partition in zip(program.nodes, partitions, strict=True):
        if any(operand in cuts for operand in node.operands):
            for operand, own in zip(node.operands, node.operand_cuts(partition.cuts), strict=True):
                for points, ends in zip(cuts.get(operand, own), own, strict=True):
                    points.update(ends)
    return cuts


def _checked_splits(node: Node, splits: Splits) -> tuple[int, ...]:
    parts = splits.get(node.name, (1,) * len(node.space))
    if len(parts) != len(node.space):
        raise InputError(
            f"op {node.name!r}: {len(parts)} splits given for its {len(node.space)} dimensions"
            + (f" ({', '.join(node.indices)})" if node.indices else "")
        )
    for dim, count in enumerate(parts):
        fault = node.split_fault(dim, count)
        if fault:
            raise InputError(f"op {node.name!r}: {fault}")
    if math.prod(parts) > _MAX_BLOCKS:
        raise InputError(
            f"op {node.name!r}: split into {math.prod(parts):,} blocks, more than {_MAX_BLOCKS:,}"
        )
    return parts
