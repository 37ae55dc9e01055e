"""A dynamic program over the ways to split the nodes of a program, for any objective.

Edges are seen from the producer: a node's consumers are its children, and formations are skipped.
The graph is cut greedily into trees: starting from the program's inputs, a tree absorbs a consumer
of a member if no other producer of that consumer lies in the tree or downstream of it. Trees are
solved downstream first, each bottom up, with the consumers in solved trees fixed. So the search is
exact on a tree, and greedy across trees. Of more than two children, or of two with too many
combinations, all but the first ones are fixed at their own best before.

Source: EinDecomp, arXiv 2410.02682.

Shape suffixes: C candidates of a node, U distinct ways to cut a tensor, K dimensions of a tensor.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from doppler.einsum.partition import even_cuts
from doppler.einsum.program import Cuts, Formation, Input, Node, Program

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


# Largest number of combinations of a node with two children; each takes a few numbers of memory.
_MOST = 4_000_000


class Objective(Protocol):
    """What is minimised: a sum over nodes, and over tensors that are read."""

    def candidates(self, node: Node) -> list[tuple[int, ...]]:
        """Return the splits to choose from, at least one; the first of equally good ones is taken.

        Args:
            node: to split.
        """
        ...

    def node_cost(self, node: Node, parts: tuple[int, ...]) -> float:
        """Return the cost of a node by itself.

        Args:
            node: that is split.
            parts: of each dimension of its space.
        """
        ...

    def edge_cost(self, tensor: "CutTensor", own: IntArray, uses: Sequence[IntArray]) -> FloatArray:
        """Return the cost of a tensor that is cut in one way and read in others.

        Args:
            tensor: that is cut.
            own: [..., K] cut points of the tensor, as `CutTensor` numbers them.
            uses: [..., K] cut points of each use; all broadcast.
        """
        ...


class CutTensor:
    """Numbers the ways in which one tensor is cut, by its producer and by its readers.

    Args:
        node: whose tensor it is.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rank = len(node.shape)
        self._cuts: list[list[tuple[int, ...]]] = [[] for _ in node.shape]
        self._numbers: list[dict[tuple[int, ...], int]] = [{} for _ in node.shape]
        self._refinements: dict[tuple[int, int, int], int] = {}

    def number(self, cuts: Cuts) -> tuple[int, ...]:
        """Return the number of the cut points along each dimension.

        Args:
            cuts: of the tensor.
        """
        return tuple(self._number(k, points) for k, points in enumerate(cuts))

    def _number(self, k: int, points: tuple[int, ...]) -> int:
        numbers = self._numbers[k]
        if points not in numbers:
            numbers[points] = len(numbers)
            self._cuts[k].append(points)
        return numbers[points]

    def refine(self, one: IntArray, other: IntArray) -> IntArray:
        """Return the common refinements of two arrays of cuts, broadcast over the other axes.

        Args:
            one: [..., K] numbers of cut points.
            other: [..., K] numbers of cut points.
        """
        result = np.empty(np.broadcast_shapes(one.shape, other.shape), dtype=np.int64)
        for k in range(self.rank):
            known = len(self._cuts[k])
            pairs, place = np.unique(one[..., k] * known + other[..., k], return_inverse=True)
            refined = [self._refined(k, *divmod(pair, known)) for pair in pairs.tolist()]
            result[..., k] = np.array(refined, dtype=np.int64)[place].reshape(result.shape[:-1])
        return result

    def _refined(self, k: int, one: int, other: int) -> int:
        if one == other:
            return one
        pair = (k, one, other)
        if pair not in self._refinements:
            union = {*self._cuts[k][one], *self._cuts[k][other]}
            self._refinements[pair] = self._number(k, tuple(sorted(union)))
        return self._refinements[pair]

    def num_blocks(self, k: int) -> FloatArray:
        """Return the number of blocks for each way to cut a dimension, by number.

        Args:
            k: dimension.
        """
        return np.array([len(points) - 1.0 for points in self._cuts[k]])

    def largest_block(self, k: int) -> FloatArray:
        """Return the elements of the largest block for each way to cut a dimension, by number.

        Args:
            k: dimension.
        """
        return np.array([float(max(b - a for a, b in pairwise(one))) for one in self._cuts[k]])


class Search:
    """One run of the dynamic program.

    Args:
        program: to split.
        objective: to minimise.
    """

    def __init__(self, program: Program, objective: Objective) -> None:
        self.objective = objective
        self.nodes = program.nodes
        # Formations are skipped: their readers read the op that they finish.
        self.finishes = [
            node.operands[0] if isinstance(node, Formation) else number
            for number, node in enumerate(self.nodes)
        ]
        self.numbers = [n for n, node in enumerate(self.nodes) if not isinstance(node, Formation)]
        self.producers = {
            n: list(dict.fromkeys(self.finishes[one] for one in self.nodes[n].operands))
            for n in self.numbers
        }
        self.consumers: dict[int, list[int]] = {n: [] for n in self.numbers}
        for n, producers in self.producers.items():
            for producer in producers:
                self.consumers[producer].append(n)
        # Nodes that differ only by name are examined once.
        structures: dict[Node, int] = {}
        self.structure = [
            structures.setdefault(replace(node, name="", operands=()), len(structures))
            for node in self.nodes
        ]
        self._known_operand_cuts: dict[int, list[list[list[set[int]]]]] = {}
        self._known_cuts: dict[Hashable, list[Cuts]] = {}
        known_candidates: dict[int, list[tuple[int, ...]]] = {}
        self.candidates = {}
        for n in self.numbers:
            if self.structure[n] not in known_candidates:
                known_candidates[self.structure[n]] = objective.candidates(self.nodes[n])
            self.candidates[n] = known_candidates[self.structure[n]]
        self._known_costs: dict[Hashable, FloatArray] = {}
        self.tensors = {n: CutTensor(self.nodes[n]) for n in self.numbers}
        self.chosen: dict[int, int] = {}

    def run(self) -> dict[str, tuple[int, ...]]:
        """Return the splits of every node but inputs and formations, by name."""
        for tree in reversed(self._trees()):
            self._solve(tree)
        return {
            self.nodes[n].name: self.candidates[n][choice]
            for n, choice in sorted(self.chosen.items())
            if not isinstance(self.nodes[n], Input)
        }

    def _trees(self) -> list[dict[int, list[int]]]:
        """Return the trees, upstream first: members as found, with the consumers they absorbed.

        A tree's consumers in other trees are in later ones, unless two trees read each other.
        """
        downstream: dict[int, set[int]] = {}
        for n in reversed(self.numbers):
            downstream[n] = {n}.union(*(downstream[c] for c in self.consumers[n]))
        taken: set[int] = set()
        trees = []
        for root in self.numbers:
            if root in taken:
                continue
            tree: dict[int, list[int]] = {root: []}
            queue = [root]
            for member in queue:
                for c in self.consumers[member]:
                    others = (p for p in self.producers[c] if p != member)
                    if c not in taken and not any(p in downstream[root] for p in others):
                        tree[member].append(c)
                        tree[c] = []
                        queue.append(c)
                        taken.add(c)
            taken.update(tree)
            trees.append(tree)
        return self._ordered(trees)

    def _ordered(self, trees: list[dict[int, list[int]]]) -> list[dict[int, list[int]]]:
        tree_of = {n: i for i, tree in enumerate(trees) for n in tree}
        order: list[int] = []
        done: set[int] = set()

        def visit(i: int) -> None:
            if i in done:
                return
            done.add(i)
            for n in trees[i]:
                for c in self.consumers[n]:
                    visit(tree_of[c])
            order.append(i)

        for i in range(len(trees)):
            visit(i)
        return [trees[i] for i in reversed(order)]

    def _solve(self, tree: dict[int, list[int]]) -> None:
        cost_C: dict[int, FloatArray] = {}
        decide: dict[int, Callable[[int], dict[int, int]]] = {}
        for n in reversed(list(tree)):
            cost_C[n], decide[n] = self._solve_node(n, tree[n], cost_C)
        root = next(iter(tree))
        pending = [(root, int(cost_C[root].argmin()))]
        for n, choice in pending:
            self.chosen[n] = choice
            pending += decide[n](choice).items()

    def _solve_node(
        self, n: int, children: list[int], cost_C: dict[int, FloatArray]
    ) -> tuple[FloatArray, Callable[[int], dict[int, int]]]:
        """Return the cost of each candidate of a node, and what its children choose under each."""
        tensor, own = self.tensors[n], self._own_costs(n)
        # Of two trees that read each other one is solved first, without the other's choices.
        consumers = [c for c in self.consumers[n] if c in children or c in self.chosen]
        if not consumers:
            return own, lambda choice: {}
        free = {c: _cheapest_by_use(self._uses(n, c), cost_C[c]) for c in children[:2]}
        if len(own) * math.prod(len(use_UK) for use_UK, _, _ in free.values()) > _MOST:
            free = {c: free[c] for c in children[:1]}
        fixed = {c: int(cost_C[c].argmin()) for c in children if c not in free}
        uses = [
            self._uses(n, c)[fixed[c] if c in fixed else self.chosen[c]]
            for c in consumers
            if c not in free
        ]
        children_cost = np.array(sum(cost_C[c][choice] for c, choice in fixed.items()))
        shape, firsts = [], []
        for axis, (use_UK, first, cheapest_U) in enumerate(free.values()):
            later = (1,) * (len(free) - 1 - axis)
            uses.append(use_UK.reshape(len(use_UK), *later, tensor.rank))
            children_cost = children_cost + cheapest_U.reshape(len(use_UK), *later)
            shape.append(len(use_UK))
            firsts.append(first)
        own_use = self._own_use(n).reshape(len(own), *(1 for _ in free), tensor.rank)
        edge = self.objective.edge_cost(tensor, own_use, uses)
        total = np.broadcast_to(edge + children_cost, (len(own), *shape)).reshape(len(own), -1)
        best = total.argmin(axis=1)

        def choices(choice: int) -> dict[int, int]:
            picked = dict(fixed)
            places = np.unravel_index(best[choice], shape) if free else ()
            for c, first, place in zip(free, firsts, places, strict=True):
                picked[c] = int(first[place])
            return picked

        return own + total.min(axis=1), choices

    def _own_costs(self, n: int) -> FloatArray:
        """Return the cost of each candidate of a node [C] by itself."""
        node = self.nodes[n]
        key = (self.structure[n], *(self.structure[one] for one in node.operands))
        if key not in self._known_costs:
            costs = [self.objective.node_cost(node, parts) for parts in self.candidates[n]]
            self._known_costs[key] = np.array(costs)
        return self._known_costs[key]

    def _own_use(self, n: int) -> IntArray:
        """Return how each candidate of a node cuts its own tensor [C, K]."""
        node, tensor = self.nodes[n], self.tensors[n]
        rows = [tensor.number(_cuts(node, parts)[: tensor.rank]) for parts in self.candidates[n]]
        return np.array(rows, dtype=np.int64).reshape(len(rows), tensor.rank)

    def _uses(self, producer: int, consumer: int) -> IntArray:
        """Return how each candidate of a consumer cuts the producer's tensor [C, K]."""
        node, tensor = self.nodes[consumer], self.tensors[producer]
        read = tuple(k for k, one in enumerate(node.operands) if self.finishes[one] == producer)
        key = (self.structure[consumer], read)
        if key not in self._known_cuts:
            shape = self.nodes[producer].shape
            self._known_cuts[key] = [
                _union([of_operand[k] for k in read], shape)
                for of_operand in self._operand_cuts(consumer)
            ]
        rows = [tensor.number(cuts) for cuts in self._known_cuts[key]]
        return np.array(rows, dtype=np.int64).reshape(len(rows), tensor.rank)

    def _operand_cuts(self, n: int) -> list[list[list[set[int]]]]:
        """Return how each candidate of a node cuts its operands."""
        node, structure = self.nodes[n], self.structure[n]
        if structure not in self._known_operand_cuts:
            self._known_operand_cuts[structure] = [
                node.operand_cuts(_cuts(node, parts)) for parts in self.candidates[n]
            ]
        return self._known_operand_cuts[structure]


def _union(cuts: Sequence[Sequence[set[int]]], shape: tuple[int, ...]) -> Cuts:
    """Return the common refinement of several cuts of one tensor."""
    points = [{0, extent} for extent in shape]
    for one in cuts:
        for known, new in zip(points, one, strict=True):
            known.update(new)
    return tuple(tuple(sorted(one)) for one in points)


def _cuts(node: Node, parts: tuple[int, ...]) -> Cuts:
    return tuple(
        even_cuts(extent, number, node.grain(dim))
        for dim, (extent, number) in enumerate(zip(node.space, parts, strict=True))
    )


def _cheapest_by_use(use_CK: IntArray, cost_C: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the distinct uses, and for each the cheapest candidate and its cost."""
    best: dict[tuple[int, ...], int] = {}
    for choice, use in enumerate(map(tuple, use_CK.tolist())):
        if use not in best or cost_C[choice] < cost_C[best[use]]:
            best[use] = choice
    choices = np.array(list(best.values()), dtype=np.int64)
    return use_CK[choices], choices, cost_C[choices]
