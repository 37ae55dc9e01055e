"""Programs for tests, put together from nodes: no text, no parser.

The first half puts programs together, the second has small ones, each with the same in plain torch.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

from doppler.einsum import lower
from doppler.einsum.program import (
    Complexer,
    Einsum,
    Fill,
    Input,
    Node,
    Piece,
    Program,
    Select,
    Squeezer,
    insert_formations,
)
from doppler.graph import DataflowGraph
from doppler.graph.levels import ranked_order
from doppler.graph.scalar import parse_scalar


class Builder:
    """Collects nodes; ops are written ``notation[:scalar[:aggregation]]`` as kernels are."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _add(self, node_class: type[Node], operands: tuple[int, ...] = (), **fields) -> int:
        dtypes = tuple(self.nodes[operand].dtype for operand in operands)
        self.nodes.append(node_class(operands=operands, operand_dtypes=dtypes, **fields))
        return len(self.nodes) - 1

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> int:
        return self._add(Input, name=name, shape=shape, dtype=dtype)

    def op(
        self, name: str, text: str, *operands: int, dtype: str | None = None, **broadcast: int
    ) -> int:
        """broadcast: extents of the indices that no operand has."""
        notation, *rest = text.split(":")
        read, written = notation.split("->")
        extents = dict(broadcast)
        for letters, operand in zip(read.split(","), operands, strict=True):
            extents.update(zip(letters, self.nodes[operand].shape, strict=True))
        indices = written + "".join(letter for letter in extents if letter not in written)
        join, aggregation = [*rest, None][:2] if rest else ("mul(x0,x1)", "add")
        return self._add(
            Einsum,
            operands,
            name=name,
            shape=tuple(extents[letter] for letter in written),
            dtype=dtype or self.nodes[operands[0]].dtype,
            indices=indices,
            extents=tuple(extents[letter] for letter in indices),
            operand_dims=tuple(
                tuple(indices.index(letter) for letter in letters) for letters in read.split(",")
            ),
            join=parse_scalar(join),
            aggregation=aggregation,
        )

    def complexer(self, name: str, operand: int) -> int:
        *rest, last = self.nodes[operand].shape
        to_complex = self.nodes[operand].dtype != "c64"
        last, dtype = (last // 2, "c64") if to_complex else (2 * last, "f32")
        return self._add(Complexer, (operand,), name=name, shape=(*rest, last), dtype=dtype)

    def squeezer(self, name: str, operand: int, dims: tuple[int | None, ...], rank: int) -> int:
        shape = [1] * rank
        for dim, extent in zip(dims, self.nodes[operand].shape, strict=True):
            if dim is not None:
                shape[dim] = extent
        dtype = self.nodes[operand].dtype
        return self._add(
            Squeezer, (operand,), name=name, shape=tuple(shape), dtype=dtype, dims=dims
        )

    def fill(
        self,
        name: str,
        shape: tuple[int, ...],
        below: float,
        above: float | None = None,
        dtype: str = "f32",
    ) -> int:
        return self._add(Fill, name=name, shape=shape, dtype=dtype, below=below, above=above)

    def select(
        self, name: str, shape: tuple[int, ...], operands: tuple[int, ...], parts: list[Piece]
    ) -> int:
        dtype = self.nodes[operands[0]].dtype
        return self._add(Select, operands, name=name, shape=shape, dtype=dtype, parts=tuple(parts))

    def program(self, name: str = "test") -> Program:
        nodes, _ = insert_formations(self.nodes)
        return Program(name=name, parameters={}, nodes=nodes, given_splits={})


def random_splits(
    program: Program, rng: np.random.Generator, *, max_parts: int = 4
) -> dict[str, tuple[int, ...]]:
    """For every node that may be split, any number of parts of each dimension, at most so many.

    The parts are uneven wherever they do not divide the dimension.
    """
    return {
        node.name: tuple(
            int(
                rng.choice([p for p in range(1, max_parts + 1) if node.split_fault(dim, p) is None])
            )
            for dim in range(len(node.space))
        )
        for node in program.nodes
        if not isinstance(node, Input) and not node.name.endswith(".formation")
    }


def random_order(graph: DataflowGraph, rng: np.random.Generator) -> list[int]:
    """All ops, producers before consumers, otherwise at random."""
    rank_V = rng.permutation(graph.num_ops)
    return ranked_order(graph.num_ops, graph.edges.src, graph.edges.dst, rank_V).tolist()


# --- Small programs -------------------------------------------------------------------------------

# From the inputs to the results, by name.
Plain = Callable[..., dict[str, torch.Tensor]]


def product_chain() -> tuple[Program, Plain]:
    """Two products, split on every index, and a sum that repartitions both."""
    b = Builder()
    x, y, z = b.input("x", (5, 7)), b.input("y", (7, 6)), b.input("z", (6, 5))
    xy = b.op("xy", "ij,jk->ik", x, y)
    xyz = b.op("xyz", "ij,jk->ik", xy, z)
    b.op("out", "ij,ji->ij:add(x0,x1)", xyz, xyz)
    return b.program(), lambda x, y, z: {"out": x @ y @ z + (x @ y @ z).T}


def softmax() -> tuple[Program, Plain]:
    """Reductions by max and add, and two results, one of which is read."""
    b = Builder()
    x, w = b.input("x", (6, 9), "f16"), b.input("w", (9,), "f16")
    scaled = b.op("scaled", "ij,j->ij:mul(f32(x0),f32(x1))", x, w, dtype="f32")
    high = b.op("high", "ij->i:x0:max", scaled)
    e = b.op("e", "ij,i->ij:exp(sub(x0,x1))", scaled, high)
    total = b.op("total", "ij->i:x0:add", e)
    b.op("out", "ij,i->ij:f16(div(x0,x1))", e, total, dtype="f16")
    b.op("low", "ij->:x0:min", scaled)

    def plain(x, w):
        scaled = x.float() * w.float()
        return {"out": scaled.softmax(1).half(), "low": scaled.amin()}

    return b.program(), plain


def rotation() -> tuple[Program, Plain]:
    """Complex numbers and back, dimensions added and dropped, a broadcast."""
    b = Builder()
    x, angle = b.input("x", (2, 5, 8)), b.input("angle", (5, 4), "c64")
    number = b.complexer("number", x)
    turned = b.op("turned", "bsi,si->bsi:mul(x0,conj(x1))", number, angle)
    pairs = b.complexer("pairs", turned)
    wide = b.squeezer("wide", pairs, (1, 2, 4), 5)
    flat = b.squeezer("flat", wide, (None, 0, 1, None, 2), 3)
    b.op("out", "bsi->bsik:square(x0)", flat, k=3)

    def plain(x, angle):
        numbers = torch.view_as_complex(x.reshape(2, 5, 4, 2)) * angle.conj()
        pairs = torch.view_as_real(numbers).reshape(2, 5, 8)
        return {"out": (pairs**2)[..., None].expand(2, 5, 8, 3)}

    return b.program(), plain


def masked() -> tuple[Program, Plain]:
    """A triangular mask, a subset, a concatenation, padding, and an input read through slices."""
    b = Builder()
    x, y = b.input("x", (6, 7)), b.input("y", (6, 7))
    mask = b.fill("mask", (2, 6, 7), 0.0, -math.inf)
    masked = b.op("masked", "ij,hij->hij:exp(add(x0,x1))", x, mask)
    rows = ((0, 2), (1, 4), (2, 7))
    part = b.select("part", (2, 3, 5), (masked,), [Piece(0, rows, (0, 0, 0))])
    both = b.select(
        "both",
        (6, 10),
        (x, y),
        [Piece(0, ((0, 6), (0, 5)), (0, 0)), Piece(1, ((0, 6), (2, 7)), (0, 5))],
    )
    padded = b.select("padded", (8, 14), (both, both), [Piece(1, ((1, 4), (3, 9)), (4, 2))])
    ones = b.fill("ones", (3, 5), 1.5)
    b.op("sum", "hij,ij->hij:add(x0,x1)", part, ones)
    b.op("out", "ij->j:x0:add", padded)
    b.op("top", "ij->i:x0:mul", both)

    def plain(x, y):
        mask = torch.zeros(6, 7).masked_fill(torch.ones(6, 7).triu(1).bool(), -math.inf)
        part = (x + mask).exp()[1:4, 2:7]
        both = torch.cat([x[:, :5], y[:, 2:]], dim=1)
        padded = torch.zeros(8, 14)
        padded[4:7, 2:8] = both[1:4, 3:9]
        return {
            "sum": (part + 1.5).expand(2, 3, 5),
            "out": padded.sum(0),
            "top": both.prod(1),
        }

    return b.program(), plain


def shared_operand() -> tuple[Program, Plain]:
    """One tensor as both operands, aligned and transposed; a result that is also read."""
    b = Builder()
    x = b.input("x", (7, 7), "f64")
    twice = b.op("twice", "ij->ij:add(x0,x0)", x)
    gram = b.op("gram", "ik,jk->ij", twice, twice)
    b.op("out", "ij,ji->ij:maximum(x0,x1)", gram, twice)

    def plain(x):
        gram = 4 * x @ x.T
        return {"out": torch.maximum(gram, 2 * x.T)}

    return b.program(), plain


PROGRAMS = [product_chain, softmax, rotation, masked, shared_operand]


def random_lowered(seed: int) -> DataflowGraph:
    """A product, a mask and parts of it, in blocks that are drawn from the seed."""
    rng = np.random.default_rng(seed)
    b = Builder()
    x, y = b.input("x", (6, 5)), b.input("y", (5, 7), "f64")
    xy = b.op("xy", "ij,jk->ik:mul(f64(x0),x1):add", x, y, dtype="f64")
    mask = b.fill("mask", (6, 7), 0.0, -np.inf, dtype="f64")
    masked = b.op("masked", "ij,ij->ij:exp(add(x0,x1))", xy, mask)
    part = b.select(
        "part",
        (4, 7),
        (masked, xy),
        [Piece(0, ((1, 4), (0, 7)), (0, 0)), Piece(1, ((2, 3), (0, 7)), (3, 0))],
    )
    b.op("out", "ij,kj->ik", part, masked)
    return lower(b.program(), random_splits(b.program(), rng, max_parts=5))
