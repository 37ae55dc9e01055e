"""Gradient rules: what an operand receives from its consumer's gradient, for each kind of node."""

from collections.abc import Sequence
from itertools import combinations

from doppler.einsum.differentiation.construction import (
    Broadcast,
    Construction,
    Value,
    as_scalar,
    every_dim,
)
from doppler.einsum.program import Complexer, Einsum, Formation, Node, Piece, Select, Squeezer
from doppler.graph.kernel import Box
from doppler.graph.scalar import Apply, Element, Number, Scalar
from doppler.graph.scalar_algebra import ZERO, cast, div, dtype_of, mul
from doppler.graph.scalar_derivative import adjoint_of
from doppler.support.errors import InputError


class GradientRules:
    """The rules, and what they need to know: the program, and the gradients so far.

    Args:
        construction: adds ops to the program.

    Attributes:
        construction: adds ops to the program.
        nodes: of the program.
        gradients: by node number, in the space of the node's tensor.
        extremes: for each maximum or minimum its operand and its result, in the space of the op.
    """

    def __init__(self, construction: Construction) -> None:
        self.construction = construction
        self.nodes = construction.program.nodes
        self.gradients: dict[int, Value] = {}
        self.extremes: dict[int, tuple[Broadcast, Broadcast]] = {}

    def received(self, consumer: int, k: int, name: str) -> list[Value]:
        """Return the addends of a gradient that an operand receives through one consumer.

        Args:
            consumer: its number; its gradient is known.
            k: position of the operand.
            name: of the node that computes the result, if one is needed.

        Raises:
            InputError: the consumer has no gradient.
        """
        match self.nodes[consumer]:
            case Einsum() as node:
                return [self._through_einsum(consumer, node, k, name)]
            case Formation() as node:
                return [self._through_formation(consumer, node)]
            case Complexer() as node:
                return [self._through_complexer(consumer, node, name)]
            case Squeezer() as node:
                return [self._through_squeezer(consumer, node, name)]
            case Select() as node:
                return self._through_select(consumer, node, k, name)
            case node:
                raise InputError(f"op {node.name!r}: {node.kind} has no gradient here")

    def _through_einsum(self, number: int, node: Einsum, k: int, name: str) -> Value:
        views = self._operand_views(node)
        u = as_scalar(self.gradients[number], views)
        finished = number if node.aggregation is None else self.construction.consumers[number][0]
        y = as_scalar(Broadcast(finished, every_dim(node)), views)
        if number in self.extremes:
            joined, extreme = (as_scalar(one, views) for one in self.extremes[number])
            u = mul(u, Apply("equal", (joined, extreme)))
        elif node.aggregation == "mul":
            u = div(u, node.join)
        dtypes = self.construction.dtypes(views)
        at_hand = node.aggregation is None and dtype_of(node.join, dtypes) == node.dtype
        return self.construction.sum_out(
            name,
            self.construction.space_of_op(node),
            _adjoint(node, k, u, dtypes, value=y if at_hand else None),
            views,
            onto=node.operand_dims[k],
            dtype=node.operand_dtypes[k],
        )

    def _through_formation(self, number: int, node: Formation) -> Value:
        """Return the common factor of the gradients of all elements that an op aggregates."""
        (op_number,), gradient = node.operands, self.gradients[number]
        op = self.nodes[op_number]
        assert isinstance(op, Einsum)
        if node.aggregation == "add":
            return gradient
        every, views = every_dim(node), []
        u = as_scalar(gradient, views)
        if node.aggregation == "mul":
            name, factor = "product", mul(u, as_scalar(Broadcast(number, every), views))
        else:
            self.extremes[op_number] = self._joined_and_extreme(op, Broadcast(number, every))
            ties = self.construction.sum_out(
                f"d_{op.name}.ties",
                self.construction.space_of_op(op),
                Apply("equal", (Element(0), Element(1))),
                self.extremes[op_number],
                onto=every,
                dtype=node.dtype,
            )
            name, factor = "share", div(u, as_scalar(ties, views))
        return self.construction.sum_out(
            f"d_{op.name}.{name}",
            self.construction.space_of_tensor(number),
            factor,
            views,
            onto=every,
            dtype=node.dtype,
        )

    def _joined_and_extreme(self, op: Einsum, extreme: Broadcast) -> tuple[Broadcast, Broadcast]:
        """Return what an op aggregates, and its maximum or minimum, in the op's join space."""
        space, views = self.construction.space_of_op(op), self._operand_views(op)
        if op.join == Element(0) and op.operand_dtypes[0] == op.dtype:
            return views[0], extreme
        # An element that is recomputed in blocks of another shape, or in another dtype, may differ
        # from the extreme in the last bit. So the elements are stored, and their extreme is taken.
        dims = tuple(sorted({dim for view in views for dim in view.dims}))
        joined = Broadcast(
            self.construction.append_einsum(
                f"d_{op.name}.joined", space, op.join, views, dims, (), op.dtype
            ),
            dims,
        )
        kept = tuple(dim for dim in dims if dim < len(op.shape))
        summed = dims[len(kept) :]
        again = self.construction.append_einsum(
            f"d_{op.name}.extreme",
            space,
            Element(0),
            [joined],
            kept,
            summed,
            op.dtype,
            aggregation=op.aggregation,
        )
        return joined, Broadcast(again, kept)

    def _through_complexer(self, number: int, node: Complexer, name: str) -> Value:
        operand = self.nodes[node.operands[0]]
        return self._view_of(
            Complexer(
                name=name,
                shape=operand.shape,
                dtype=operand.dtype,
                operands=(self._stored(number),),
                operand_dtypes=(node.dtype,),
            )
        )

    def _through_squeezer(self, number: int, node: Squeezer, name: str) -> Value:
        gradient = self.gradients[number]
        if isinstance(gradient, Number):
            return gradient
        # A dimension that the squeezer added is dropped, and one that it dropped is repeated.
        back = {into: dim for dim, into in enumerate(node.dims) if into is not None}
        dims = [back.get(into) for into in gradient.dims]
        kept = tuple(dim for dim in dims if dim is not None)
        if len(kept) == len(dims):
            return Broadcast(gradient.node, kept)
        operand = self.nodes[node.operands[0]]
        inverse = Squeezer(
            name=name,
            shape=tuple(operand.shape[dim] for dim in kept),
            dtype=operand.dtype,
            operands=(gradient.node,),
            operand_dtypes=(node.dtype,),
            dims=tuple(None if dim is None else kept.index(dim) for dim in dims),
        )
        return Broadcast(self.construction.append(inverse), kept)

    def _through_select(self, number: int, node: Select, k: int, name: str) -> list[Value]:
        operand, source = self.nodes[node.operands[k]], self._stored(number)
        parts = [part for part in node.parts if part.operand == k]
        back = []
        for part in parts:
            box = tuple(
                (into, into + stop - start)
                for into, (start, stop) in zip(part.start, part.box, strict=True)
            )
            back.append(Piece(0, box, tuple(start for start, _ in part.box)))
        # Overlapping pieces receive several gradients, which one Select cannot add.
        is_disjoint = not any(_overlap(one.box, two.box) for one, two in combinations(parts, 2))
        return [
            self._view_of(
                Select(
                    name=name if is_disjoint else f"{name}.part{place}",
                    shape=operand.shape,
                    dtype=operand.dtype,
                    operands=(source,),
                    operand_dtypes=(node.dtype,),
                    parts=tuple(pieces),
                )
            )
            for place, pieces in enumerate([back] if is_disjoint else [[one] for one in back])
        ]

    def _view_of(self, node: Node) -> Broadcast:
        return Broadcast(self.construction.append(node), every_dim(node))

    def _stored(self, number: int) -> int:
        """Return the number of a node that stores a node's gradient in full."""
        node, gradient = self.nodes[number], self.gradients[number]
        stored = self.construction.store(f"d_{node.name}.whole", gradient, number)
        self.gradients[number] = Broadcast(stored, every_dim(node))
        return stored

    def _operand_views(self, op: Einsum) -> list[Broadcast]:
        return [Broadcast(*one) for one in zip(op.operands, op.operand_dims, strict=True)]


def depends(node: Node, k: int) -> bool:
    """Return whether a node's tensor changes with an operand.

    Args:
        node: that reads the operand.
        k: position of the operand.
    """
    if isinstance(node, Einsum):
        dtypes = [*node.operand_dtypes, dtype_of(node.join, node.operand_dtypes) or node.dtype]
        return _adjoint(node, k, Element(len(node.operands)), dtypes) != ZERO
    return not isinstance(node, Select) or any(part.operand == k for part in node.parts)


def _adjoint(
    op: Einsum, k: int, u: Scalar, dtypes: Sequence[str], value: Scalar | None = None
) -> Scalar:
    """Return the adjoint of an operand's element, given that of the join's value."""
    try:
        u = cast(u, dtype_of(op.join, dtypes), dtypes)
        return adjoint_of(op.join, k, u, dtypes, value=value)
    except ValueError as error:
        raise InputError(f"op {op.name!r}: {error}") from None


def _overlap(one: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
