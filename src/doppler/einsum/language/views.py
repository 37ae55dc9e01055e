"""Resolves view statements to nodes: tensors in another form, and ops that are not einsums."""

from collections.abc import Callable, Sequence
from typing import Any

from lark import Token

from doppler.einsum.language.parser import Output, TensorAccess, Viewed, ViewStatement
from doppler.einsum.language.scope import Extents, Scope, check_letters
from doppler.einsum.opaque import Opaque
from doppler.einsum.program import Complexer, Node, Piece, Select, Squeezer
from doppler.graph.kernel import Box


def resolve_view(scope: Scope, statement: ViewStatement) -> Node:
    """Return the node of a view.

    Args:
        scope: tensors defined so far.
        statement: of the view.

    Raises:
        InputError: what is wrong with the statement, and where.
    """
    output, viewed = statement.output, statement.viewed
    for index in output.extents:
        raise scope.source.fault(index, f"'{viewed.word}' determines the extent of index '{index}'")
    check_letters(scope.source, output.indices)
    return _VIEWS[viewed.word](_View(scope, output, viewed))


class _View:
    """One view statement, and what all kinds of views share."""

    def __init__(self, scope: Scope, output: Output, viewed: Viewed) -> None:
        self.scope = scope
        self.source = scope.source
        self.output = output
        self.word = viewed.word
        self.tensors: list[TensorAccess] = viewed.tensors
        self.index = viewed.index
        self.ranges = viewed.ranges
        self.numbers = [scope.find(tensor) for tensor in viewed.tensors]
        self.operands = [scope.nodes[number] for number in self.numbers]

    def fields(self) -> dict[str, Any]:
        return {
            "name": str(self.output.name),
            "indices": "".join(self.output.indices),
            "operands": tuple(self.numbers),
            "operand_dtypes": tuple(operand.dtype for operand in self.operands),
        }

    def common_dtype(self) -> str:
        for tensor, operand in zip(self.tensors, self.operands, strict=True):
            if operand.dtype != self.operands[0].dtype:
                raise self.source.fault(
                    tensor.name,
                    f"'{tensor.name}' is {operand.dtype}, but '{self.tensors[0].name}' is "
                    f"{self.operands[0].dtype}",
                )
        return self.operands[0].dtype

    def same_indices(self, tensor: TensorAccess, count: int | None = None) -> None:
        """Check that the first ``count`` indices of a tensor, or all, are those of the output."""
        if len(tensor.indices) != len(self.output.indices):
            raise self.source.fault(
                self.output.name,
                f"'{self.output.name}' has {len(self.output.indices)} dimensions, but "
                f"'{tensor.name}' has {len(tensor.indices)}",
            )
        for own, index in list(zip(self.output.indices, tensor.indices, strict=True))[:count]:
            if own != index:
                raise self.source.fault(
                    own, f"index '{own}' of the output is where '{tensor.name}' has '{index}'"
                )


def _complex_or_real(view: _View) -> Node:
    (tensor,), (operand,) = view.tensors, view.operands
    needed = "f32" if view.word == "complex" else "c64"
    if operand.dtype != needed:
        raise view.source.fault(
            tensor.name,
            f"'{tensor.name}' is {operand.dtype}; '{view.word}' needs {needed}",
        )
    if not tensor.indices:
        raise view.source.fault(tensor.name, f"'{tensor.name}' has no dimension of pairs")
    view.same_indices(tensor, -1)
    if view.output.indices[-1] == tensor.indices[-1]:
        raise view.source.fault(
            view.output.indices[-1],
            f"index '{tensor.indices[-1]}' has another extent here: use another letter",
        )
    last = operand.shape[-1]
    if view.word == "real":
        return Complexer(shape=(*operand.shape[:-1], 2 * last), dtype="f32", **view.fields())
    if last % 2:
        raise view.source.fault(
            tensor.indices[-1],
            f"index '{tensor.indices[-1]}' has {last} elements, but pairs need an even number",
        )
    return Complexer(shape=(*operand.shape[:-1], last // 2), dtype="c64", **view.fields())


def _squeeze(view: _View) -> Node:
    (tensor,), (operand,) = view.tensors, view.operands
    kept = [index for index in tensor.indices if index in view.output.indices]
    shared = [index for index in view.output.indices if index in tensor.indices]
    for before, after in zip(kept, shared, strict=True):
        if before != after:
            raise view.source.fault(
                after, f"index '{after}' is not in the same order as in the operand"
            )
    extents = dict(zip(tensor.indices, operand.shape, strict=True))
    for index, extent in extents.items():
        if index not in view.output.indices and extent != 1:
            raise view.source.fault(
                index, f"index '{index}' has {extent} elements: only one can be dropped"
            )
    return Squeezer(
        shape=tuple(extents.get(index, 1) for index in view.output.indices),
        dtype=operand.dtype,
        dims=tuple(
            view.output.indices.index(index) if index in view.output.indices else None
            for index in tensor.indices
        ),
        **view.fields(),
    )


def _select(view: _View) -> Node:
    (tensor,), (operand,) = view.tensors, view.operands
    view.same_indices(tensor)
    box = [(0, extent) for extent in operand.shape]
    for index, start, stop in view.ranges:
        dim = tensor.indices.index(index)
        first = view.scope.constants.extent(start, least=0)
        last = view.scope.constants.extent(stop)
        if not first < last <= operand.shape[dim]:
            raise view.source.fault(
                index,
                f"index '{index}' has no range {first}:{last}: it has {operand.shape[dim]} "
                f"elements in '{tensor.name}'",
            )
        box[dim] = (first, last)
    return _assembled(view, [tuple(box)], 0)


def _concat(view: _View) -> Node:
    for tensor in view.tensors:
        view.same_indices(tensor)
    index = view.index
    assert index is not None, "the grammar asks for one"
    if index not in view.output.indices:
        raise view.source.fault(
            index, f"unknown index '{index}'; the indices are {', '.join(view.output.indices)}"
        )
    dim = view.output.indices.index(index)
    others = Extents(view.source)
    for tensor, operand in zip(view.tensors, view.operands, strict=True):
        others.bind(
            TensorAccess(tensor.name, tensor.indices[:dim] + tensor.indices[dim + 1 :]),
            operand.shape[:dim] + operand.shape[dim + 1 :],
        )
    boxes = [tuple((0, extent) for extent in operand.shape) for operand in view.operands]
    return _assembled(view, boxes, dim)


def _assembled(view: _View, boxes: Sequence[Box], dim: int) -> Node:
    """Put one box of each operand behind each other along a dimension."""
    parts, start = [], 0
    for operand, box in enumerate(boxes):
        parts.append(Piece(operand, box, tuple(start * (d == dim) for d in range(len(box)))))
        start += box[dim][1] - box[dim][0]
    shape = [stop - first for first, stop in boxes[0]]
    shape[dim] = start
    return Select(
        shape=tuple(shape), dtype=view.common_dtype(), parts=tuple(parts), **view.fields()
    )


def _opaque(view: _View) -> Node:
    for tensor, operand in zip(view.tensors, view.operands, strict=True):
        if len(operand.shape) != 2:
            raise view.source.fault(
                tensor.name, f"'{tensor.name}' has {len(operand.shape)} dimensions, not 2"
            )
        if operand.dtype not in ("f32", "f64"):
            raise view.source.fault(
                tensor.name,
                f"'{tensor.name}' is {operand.dtype}; '{view.word}' needs f32 or f64",
            )
    square = view.tensors[0]
    expected = _solved(view) if view.word == "solve" else square.indices
    extents = Extents(view.source)
    for tensor, operand in zip(view.tensors, view.operands, strict=True):
        extents.bind(tensor, operand.shape)
    if len({extents.of[index] for index in square.indices}) > 1:
        raise view.source.fault(square.name, f"'{square.name}' is not square")
    if view.output.indices != expected:
        raise view.source.fault(
            view.output.name, f"the indices of the output are {', '.join(expected)}"
        )
    return Opaque(
        shape=tuple(extents.of[index] for index in expected),
        dtype=view.common_dtype(),
        operator=view.word,
        operand_shapes=tuple(operand.shape for operand in view.operands),
        **view.fields(),
    )


def _solved(view: _View) -> list[Token]:
    left, right = view.tensors
    if left.indices[1] != right.indices[0] or right.indices[1] in left.indices:
        raise view.source.fault(right.name, "'solve' is written X[i, k] = solve L[i, j], B[j, k]")
    return [left.indices[0], right.indices[1]]


_VIEWS: dict[str, Callable[[_View], Node]] = {
    **dict.fromkeys(["complex", "real"], _complex_or_real),
    **dict.fromkeys(["cholesky", "solve"], _opaque),
    "squeeze": _squeeze,
    "select": _select,
    "concat": _concat,
}
