"""Construction: appends ops to a program, and reuses tensors that have the needed values."""

import math
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import NamedTuple, TypeAlias

from doppler.einsum.program import Einsum, Fill, Formation, Node, Program, formation_of
from doppler.graph.scalar import DTYPES, Apply, Element, Number, Scalar, map_elements
from doppler.graph.scalar_algebra import list_elements, mul


class Space(NamedTuple):
    """Dimensions of a join space.

    Attributes:
        indices: a letter for each dimension.
        extents: the size of each dimension.
        parts: number of parts of each dimension; None if not given.
    """

    indices: str
    extents: tuple[int, ...]
    parts: tuple[int, ...] | None = None


class Broadcast(NamedTuple):
    """The tensor of a node in a space, repeated along the dimensions that it does not have.

    Attributes:
        node: its number.
        dims: for each dimension of the tensor the dimension of the space that it runs along. Along
            the others the tensor is repeated, but not stored repeatedly.
    """

    node: int
    dims: tuple[int, ...]


# A tensor in a space; a constant is repeated along every dimension.
Value: TypeAlias = Broadcast | Number


def every_dim(node: Node) -> tuple[int, ...]:
    """Return the dimensions of a node's tensor.

    Args:
        node: whose tensor it is.
    """
    return tuple(range(len(node.shape)))


def as_scalar(value: Value, views: list[Broadcast]) -> Scalar:
    """Return a constant itself, or an element of a tensor, which is appended to the views.

    Args:
        value: constant or tensor.
        views: tensors that the scalar's elements refer to; may be changed.
    """
    if isinstance(value, Number):
        return value
    views.append(value)
    return Element(len(views) - 1)


class Construction:
    """The nodes of a program, and those that are appended to them.

    Args:
        program: to extend.

    Attributes:
        program: that is extended.
        consumers: numbers of the nodes that read each node of the program.
        nodes: of the program, and the new ones.
        splits: by node name, of all of them.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.consumers = program.consumers
        self.nodes = list(program.nodes)
        self.splits = dict(program.given_splits)
        self._names = {node.name for node in program.nodes}

    def append(self, node: Node, parts: tuple[int, ...] | None = None) -> int:
        """Add a node, and a formation if it aggregates; a name that is in use gets a suffix.

        Args:
            node: to add.
            parts: number of parts of each dimension of its space; None if not given.

        Returns:
            The number of the node that has the finished tensor.
        """
        while node.name in self._names:
            node = replace(node, name=f"{node.name}_")
        self._names.add(node.name)
        self.nodes.append(node)
        if parts is not None:
            self.splits[node.name] = parts
        number = len(self.nodes) - 1
        if isinstance(node, Einsum) and node.aggregation is not None:
            return self.append(formation_of(node, number))
        return number

    def dtypes(self, views: Sequence[Broadcast]) -> list[str]:
        """Return the dtype of every view.

        Args:
            views: tensors.
        """
        return [self.nodes[view.node].dtype for view in views]

    def space_of_op(self, op: Einsum) -> Space:
        """Return the join space of an op of the program.

        Args:
            op: of the program.
        """
        return Space(op.indices, op.extents, self.program.given_splits.get(op.name))

    def space_of_tensor(self, number: int) -> Space:
        """Return the space of a node's tensor, with letters and splits of its op or of a reader.

        Args:
            number: of the node.
        """
        node = self.program.nodes[number]
        op = self.program.nodes[node.operands[0]] if isinstance(node, Formation) else node
        dims = every_dim(node)
        if not op.indices:
            readers = (self.program.nodes[consumer] for consumer in self.consumers[number])
            op = next((reader for reader in readers if isinstance(reader, Einsum)), None)
            if op is None:
                return Space(ascii_lowercase[: len(dims)], node.shape)
            dims = op.operand_dims[op.operands.index(number)]
        parts = self.program.given_splits.get(op.name)
        return Space(
            "".join(op.indices[dim] for dim in dims),
            node.shape,
            parts and tuple(parts[dim] for dim in dims),
        )

    def sum_out(
        self,
        name: str,
        space: Space,
        scalar: Scalar,
        views: Sequence[Broadcast],
        onto: tuple[int, ...],
        dtype: str,
    ) -> Value:
        """Sum a scalar function of tensors over all dimensions of a space but those of the result.

        An op is added only if no node has the result already.

        Args:
            name: of the op.
            space: of the function.
            scalar: the function; its elements are those of ``views``.
            views: tensors in the space.
            onto: dimensions of the space that stay, which are the space of the result.
            dtype: of the result.

        Returns:
            The result in the space ``onto``.
        """
        present = {dim for k in list_elements(scalar) for dim in views[k].dims}
        # A sum along a dimension on which nothing depends is a multiplication.
        times = math.prod(
            extent
            for dim, extent in enumerate(space.extents)
            if dim not in present and dim not in onto
        )
        scalar = mul(Number(float(times)), scalar)
        kept = tuple(dim for dim in onto if dim in present)
        summed = tuple(sorted(present.difference(onto)))
        if isinstance(scalar, Number):
            return scalar
        if isinstance(scalar, Element) and not summed:
            view = views[scalar.operand]
            return Broadcast(view.node, tuple(onto.index(dim) for dim in view.dims))
        if summed and isinstance(scalar, Apply):
            if scalar.function in DTYPES:
                # The op's dtype casts the sum, so the addends need no cast.
                (scalar,) = scalar.arguments
            scalar, views = self._without_conjugates(name, space, scalar, views)
        number = self.append_einsum(name, space, scalar, views, kept, summed, dtype)
        return Broadcast(number, tuple(onto.index(dim) for dim in kept))

    def append_einsum(
        self,
        name: str,
        space: Space,
        scalar: Scalar,
        views: Sequence[Broadcast],
        kept: tuple[int, ...],
        aggregated: tuple[int, ...],
        dtype: str,
        aggregation: str | None = "add",
    ) -> int:
        """Add the op that aggregates a scalar function of tensors in a space (see `sum_out`).

        Args:
            name: of the op.
            space: its join space.
            scalar: the function.
            views: its operands.
            kept: dimensions of the space that the result has.
            aggregated: dimensions that are aggregated.
            dtype: of the result.
            aggregation: add, mul, max or min; unused if no dimension is aggregated.

        Returns:
            The number of the node that has the finished tensor.
        """
        used = list(dict.fromkeys(views[k] for k in list_elements(scalar)))
        dims = (*kept, *aggregated)
        extents = tuple(space.extents[dim] for dim in dims)
        node = Einsum(
            name=name,
            shape=extents[: len(kept)],
            dtype=dtype,
            indices="".join(space.indices[dim] for dim in dims),
            operands=tuple(view.node for view in used),
            operand_dtypes=tuple(self.dtypes(used)),
            extents=extents,
            operand_dims=tuple(tuple(dims.index(dim) for dim in view.dims) for view in used),
            join=map_elements(scalar, lambda k: Element(used.index(views[k]))),
            aggregation=aggregation if aggregated else None,
        )
        return self.append(node, space.parts and tuple(space.parts[dim] for dim in dims))

    def _without_conjugates(
        self, name: str, space: Space, scalar: Scalar, views: Sequence[Broadcast]
    ) -> tuple[Scalar, Sequence[Broadcast]]:
        """Store conjugated factors of a product as tensors: contractions take no others."""
        if not (isinstance(scalar, Apply) and scalar.function == "mul"):
            return scalar, views
        views, factors = list(views), list(scalar.arguments)
        for place, factor in enumerate(factors):
            match factor:
                case Apply("conj", (Element(operand),)):
                    dims = views[operand].dims
                    number = self.append_einsum(
                        f"{name}.conj", space, factor, views, dims, (), "c64"
                    )
                    factors[place] = as_scalar(Broadcast(number, dims), views)
        return Apply("mul", tuple(factors)), views

    def store(self, name: str, value: Value, number: int) -> int:
        """Return the number of a node that stores a value in full.

        Args:
            name: of the node, if one is added.
            value: in the space of the tensor of node ``number``.
            number: of a node with the shape and dtype of the result.
        """
        like = self.program.nodes[number]
        if isinstance(value, Number):
            fill = Fill(name=name, shape=like.shape, dtype=like.dtype, below=value.value)
            return self.append(fill)
        every = every_dim(like)
        if value.dims == every:
            return value.node
        space = self.space_of_tensor(number)
        return self.append_einsum(name, space, Element(0), [value], every, (), like.dtype)
