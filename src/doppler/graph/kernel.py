"""What an op computes and from which pieces: data that can be stored, hashed and compiled."""

from dataclasses import dataclass
from typing import TypeAlias

# Per dimension (start, stop).
Box: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """A computation on tensors of given shapes, independent of where they come from.

    Attributes:
        expression: one of the forms below.
        operand_shapes: shape of each operand that the kernel receives.
        operand_dtypes: dtype of each operand.
        output_shape: shape of the result.
        dtype: of the result.

    Forms of ``expression``:

    * ``ij,jk->ik``: sum of products over every index that is not behind the arrow;
    * ``ij,i->ij:sub(x0,x1)``: a scalar function (graph.scalar) of aligned elements;
    * ``ij->i:exp(x0):max``: the same, aggregated by add, mul, max or min;
    * ``formation:add``: operands of one shape aggregated element by element by add, mul, max or
      min;
    * ``complex``, ``real``: pairs along the last dimension as complex numbers, and back;
    * ``copy``: the operand in the shape of the result (both have the same elements in row-major
      order);
    * ``fill:0.0``: a constant; ``fill:0.0,-inf,3``: the first number where column <= row + 3 in the
      last two dimensions, else the second;
    * ``cholesky``: the lower triangular factor of a matrix, of which only the lower triangle is
      read; ``solve``: the X with L X = B, from the lower triangle of L and from B;
    * ``torch:aten.cumsum.default:{"args": [{"x": 0, "factors": [1, 2]}, 1], "kwargs": {}}``: a call
      of one of torch's own operators. ``{"x": k, "factors": ...}`` is operand k; each factor is the
      number of its neighbouring dimensions that are merged into one. ``{"dtype": "float32"}`` is a
      dtype. ``output``: k selects one of several results.
    """

    expression: str
    operand_shapes: tuple[tuple[int, ...], ...]
    operand_dtypes: tuple[str, ...]
    output_shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Read:
    """One piece of an operand: a box of what another op, or an input, holds.

    Elements of an operand that no piece covers are 0.

    Attributes:
        operand: number of the kernel's operand.
        source: number of the op, or of the input if ``from_input``.
        box: in the source's block, counted from the block's first element.
        start: where the piece begins in the operand, per dimension.
        from_input: whether the source is an input.
    """

    operand: int
    source: int
    from_input: bool
    box: Box
    start: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A node of the program that a graph was made from; ops compute blocks of it.

    Attributes:
        name: of the node.
        shape: of the tensor.
        dtype: of the tensor.
        is_output: whether it is a result of the program.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_output: bool = False
