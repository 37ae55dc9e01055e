"""The decomposition of the published graphs: fewest elements moved, splits into powers of two.

It ignores time, memory and the links between devices.

Source: EinDecomp, arXiv 2410.02682. The order of enumeration, which breaks ties, reproduces the
published graphs.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from doppler.einsum.decomposition.search import CutTensor, FloatArray, IntArray, Search
from doppler.einsum.program import Einsum, Node, Program, Splits
from doppler.support.errors import InputError


class FewestElements:
    """Splits into powers of two that move the fewest elements."""

    def splits(self, program: Program, parts: int) -> Splits:
        """Return the splits of every node but inputs and formations.

        Args:
            program: to split.
            parts: number of ops into which a contraction is split; other nodes have at most as
                many.

        Raises:
            InputError: parts is not a power of two, or a contraction is too small for so many.
        """
        if parts < 1 or parts & (parts - 1):
            raise InputError(
                f"workload.parts: decomposition=published needs a power of two, got {parts}"
            )
        return Search(program, ElementsMoved(parts.bit_length() - 1)).run()


class ElementsMoved:
    """An objective: the number of elements that blocks read, exchange and repartition.

    Args:
        total: binary logarithm of the number of blocks of a contraction.
    """

    def __init__(self, total: int) -> None:
        self.total = total

    def candidates(self, node: Node) -> list[tuple[int, ...]]:
        rank = len(node.space)
        if isinstance(node, Einsum) and node.is_contraction:
            exponents = _exponents(rank, self.total)
        else:  # one more exponent stands for parts that are not used
            exponents = (one[:-1] for one in _exponents(rank + 1, self.total))
        fitting = [
            parts
            for parts in (tuple(2**exponent for exponent in one) for one in exponents)
            if all(node.split_fault(dim, number) is None for dim, number in enumerate(parts))
        ]
        if not fitting:
            raise InputError(f"op {node.name!r}: too small for {2**self.total} parts")
        return fitting

    def node_cost(self, node: Node, parts: tuple[int, ...]) -> float:
        """Return the elements that the blocks of a contraction read, and those of partial results.

        Args:
            node: that is split.
            parts: of each dimension of its space.
        """
        if not (isinstance(node, Einsum) and node.is_contraction):
            return 0
        num = math.prod(parts)
        joined = 0
        for dims in node.operand_dims:
            size = math.prod(node.extents[dim] for dim in dims)
            joined += size * (num // math.prod(parts[dim] for dim in dims))
        num_out = math.prod(parts[: len(node.shape)])
        return joined + math.prod(node.shape) // num_out * (num - num_out)

    def edge_cost(self, tensor: CutTensor, own: IntArray, uses: Sequence[IntArray]) -> FloatArray:
        """Return the elements of all pairs of a block and a block of the uses' common refinement.

        Args:
            tensor: that is cut.
            own: [..., K] cut points of the tensor.
            uses: [..., K] cut points of each use; all broadcast.
        """
        refined = uses[0]
        for use in uses[1:]:
            refined = tensor.refine(refined, use)
        block_own = block_refined = blocks = np.ones(())
        same = np.ones((), dtype=bool)
        for k in range(tensor.rank):
            num, largest = tensor.num_blocks(k), tensor.largest_block(k)
            block_own = block_own * largest[own[..., k]]
            block_refined = block_refined * largest[refined[..., k]]
            blocks = blocks * np.maximum(num[own[..., k]], num[refined[..., k]])
            same = same & (own[..., k] == refined[..., k])
        weight = 2 if tensor.node.dtype == "c64" else 1
        return np.where(same, 0.0, (block_own + block_refined) * blocks * weight)


def _exponents(rank: int, total: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide a sum; the last exponent is the outermost loop, ascending."""
    if rank == 0:
        if total == 0:
            yield ()
        return
    for last in range(total + 1):
        for rest in _exponents(rank - 1, total - last):
            yield (*rest, last)
