"""What an op computes, and from what: data that is stored, hashed, calibrated and compiled."""

from dataclasses import dataclass
from typing import TypeAlias

# Per dimension (start, stop).
Box: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """A computation on tensors of given shapes, wherever these come from: equal work is equal.

    expression: one of

    - ``ij,jk->ik``: sum of products, over every index that is not behind the arrow;
    - ``ij,i->ij:sub(x0,x1)``: a scalar function (graph.scalar) of aligned elements;
    - ``ij->i:exp(x0):max``: the same, aggregated by add, mul, max or min;
    - ``formation:add``: operands of one shape aggregated element by element, add, mul, max or min;
    - ``complex``, ``real``: pairs along the last dimension as complex numbers, and back;
    - ``copy``: the operand in the shape of the result (both have the same elements in row-major
      order);
    - ``fill:0.0``: a constant; ``fill:0.0,-inf,3``: the first number where column <= row + 3 in the
      last two dimensions, else the second;
    - ``cholesky``: the lower triangular factor of a matrix, of which the lower triangle is read;
      ``solve``: the X with L X = B, of the lower triangle of L and of B;
    - ``torch:aten.cumsum.default:{"args": [{"x": 0, "factors": [1, 2]}, 1], "kwargs": {}}``: a call
      of torch's own operator. ``{"x": k, "factors": ...}`` is operand k with so many neighbouring
      dimensions taken together as each of its own; ``{"dtype": "float32"}`` a dtype; ``output``: k
      is the result that is meant where there are several.

    operand_shapes, operand_dtypes: of each operand that the kernel receives. output_shape, dtype:
    of its result.
    """

    expression: str
    operand_shapes: tuple[tuple[int, ...], ...]
    operand_dtypes: tuple[str, ...]
    output_shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Read:
    """One piece of an operand: a box of what another op, or an input, holds.

    operand: which operand of the kernel. source: op, or input if ``from_input``. box: in the
    source's own block, counted from the block's first element. start: where in the operand the
    piece begins, per dimension. Elements of an operand that no piece covers are 0.
    """

    operand: int
    source: int
    from_input: bool
    box: Box
    start: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A node of the program that a graph was made from: what its blocks are parts of.

    is_output: it is a result of the program.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_output: bool = False
