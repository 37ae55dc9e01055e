"""Ops that no einsum expresses: factoring a matrix, and solving with a triangular one."""

from dataclasses import dataclass

from doppler.einsum.program import KernelOperand, Node, Piece
from doppler.graph.kernel import Box


@dataclass(frozen=True, kw_only=True)
class Opaque(Node):
    """An op that is known by name, and computed whole: one block.

    Attributes:
        operator: ``cholesky``: the lower triangular L with L L^T = A, 0 above its diagonal; it
            reads the lower triangle of A, diagonal included. ``solve``: the X with L X = B, L lower
            triangular; it reads the lower triangle of L. The kernel has the operator's name.
    """

    operator: str
    operand_shapes: tuple[tuple[int, ...], ...]

    @property
    def kind(self) -> str:
        return self.operator

    def kernel_operands(self, box: Box) -> tuple[KernelOperand, ...]:
        return tuple(
            KernelOperand(
                shape, dtype, (Piece(k, tuple((0, extent) for extent in shape), (0,) * len(shape)),)
            )
            for k, (shape, dtype) in enumerate(
                zip(self.operand_shapes, self.operand_dtypes, strict=True)
            )
        )

    def expression(self, box: Box) -> str:
        return self.operator

    def flops(self, box: Box) -> int:
        """n^3 / 3 of a factor, n^2 k of a solution with k columns; lower orders left out."""
        rows, columns = self.shape
        return rows**3 // 3 if self.operator == "cholesky" else rows**2 * columns

    def split_fault(self, dim: int, parts: int) -> str | None:
        return None if parts == 1 else f"'{self.operator}' cannot be split"
