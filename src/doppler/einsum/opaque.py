"""Ops that no einsum expresses: factorising a matrix, and solving a triangular system."""

from dataclasses import dataclass

from doppler.einsum.program import KernelOperand, Node, Piece
from doppler.graph.kernel import Box


@dataclass(frozen=True, kw_only=True)
class Opaque(Node):
    """An op that is known by name and never split.

    Attributes:
        operator: ``cholesky`` or ``solve``, which is also the name of the kernel. ``cholesky``
            returns the lower triangular L with L L^T = A, 0 above its diagonal; it reads the lower
            triangle of A, including the diagonal. ``solve`` returns the X with L X = B for a lower
            triangular L; it reads the lower triangle of L.
        operand_shapes: shape of each operand.
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
        """Return n^3 / 3 for a factorisation, n^2 k for a solution with k columns (leading orders).

        Args:
            box: unused.
        """
        rows, columns = self.shape
        return rows**3 // 3 if self.operator == "cholesky" else rows**2 * columns

    def split_fault(self, dim: int, parts: int) -> str | None:
        return None if parts == 1 else f"'{self.operator}' cannot be split"
