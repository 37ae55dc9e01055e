"""Assembles the operands of a kernel from the pieces that its op reads."""

import math
from collections.abc import Sequence

import torch

from doppler.executor.elementwise import TORCH_DTYPES
from doppler.graph import Box, KernelSpec, Read


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """Return a box of a tensor as a view, or the tensor itself if the box is all of it.

    Args:
        tensor: to cut.
        box: a range for each dimension.
    """
    if all(span == (0, extent) for span, extent in zip(box, tensor.shape, strict=True)):
        return tensor
    return tensor[_slices(box)]


def assemble(
    kernel: KernelSpec,
    reads: Sequence[Read],
    pieces: Sequence[torch.Tensor],
    *,
    device: str = "cpu",
) -> list[torch.Tensor]:
    """Assemble the operands of a kernel.

    Args:
        kernel: gives shapes and dtypes of its operands.
        reads: of its op; they do not overlap within an operand.
        pieces: the part of its source that each read takes.
        device: of the pieces.

    Returns:
        The operands. One that consists of a single piece is that piece, others are new tensors.
    """
    pieces_of: list[list[tuple[Read, torch.Tensor]]] = [[] for _ in kernel.operand_shapes]
    for read, piece in zip(reads, pieces, strict=True):
        pieces_of[read.operand].append((read, piece))
    operands = []
    for shape, dtype, parts in zip(
        kernel.operand_shapes, kernel.operand_dtypes, pieces_of, strict=True
    ):
        if len(parts) == 1 and parts[0][1].shape == shape:
            operands.append(parts[0][1])
            continue
        is_covered = sum(piece.numel() for _, piece in parts) == math.prod(shape)
        operand = (torch.empty if is_covered else torch.zeros)(
            shape, dtype=TORCH_DTYPES[dtype], device=device
        )
        for read, piece in parts:
            into = tuple(
                (begin, begin + extent)
                for begin, extent in zip(read.start, piece.shape, strict=True)
            )
            operand[_slices(into)] = piece
        operands.append(operand)
    return operands


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
