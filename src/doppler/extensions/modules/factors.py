"""Factors: divides each dimension of each tensor so that reshapes need not move elements.

``view(batch, positions, heads, width)`` splits a dimension, and its inverse merges two. If the
tensors before and after these ops have the factors heads and width as dimensions of their own from
the start, both ops only read the same tensor in another way. So dimensions that must have equal
factors are put into classes, and the cuts of a reshape spread from class to class. Factors are kept
as *strides*: 6 = 2 x 3 has the strides 1, 3, 6. Each stride must divide the next. No strides allow
both 6 = 2 x 3 and 6 = 3 x 2, so a reshape that would need them is refused, and moves its elements.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

# A dimension of a tensor: the tensor's name and the number of the dimension.
Dim: TypeAlias = tuple[str, int]


class Same(NamedTuple):
    """Two dimensions with the same elements.

    Attributes:
        one: a dimension.
        other: a dimension.
    """

    one: Dim
    other: Dim


class Slice(NamedTuple):
    """A dimension that is a slice of another: element i is its element ``start + step * i``.

    Attributes:
        whole: the dimension that is sliced.
        part: the slice.
        start: first element.
        step: distance of elements.
    """

    whole: Dim
    part: Dim
    start: int
    step: int


class Reshape(NamedTuple):
    """Two lists of dimensions with the same elements in row-major order.

    Attributes:
        name: of the op.
        before: dimensions of its operand.
        after: dimensions of its result.
    """

    name: str
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]


Tie: TypeAlias = Same | Slice | Reshape


@dataclass
class _Class:
    """Dimensions with equal factors: their size, ascending strides, and ties."""

    size: int
    strides: list[int]
    ties: list["_Reshape | _Part"]


class _Part(NamedTuple):
    whole: _Class
    part: _Class
    start: int
    step: int

    def implied(self) -> Iterator[tuple[_Class, int]]:
        """Yield the strides that one side has and that the other side can have."""
        if self.step > 1:
            if self.whole.size == self.part.size * self.step:
                yield self.whole, self.step
                yield from ((self.whole, stride * self.step) for stride in self.part.strides)
                for stride in self.whole.strides:
                    if stride % self.step == 0:
                        yield self.part, stride // self.step
            return
        for this, other in ((self.whole, self.part), (self.part, self.whole)):
            for stride in this.strides:
                fits = not (self.start % stride or self.part.size % stride)
                if fits and other.size % stride == 0:
                    yield other, stride


class _Reshape(NamedTuple):
    before: tuple[_Class, ...]
    after: tuple[_Class, ...]

    def implied(self) -> Iterator[tuple[_Class, int]]:
        """Yield the strides of both sides, as strides of the dimensions they fall into."""
        sides = [list(_with_inner_sizes(side)) for side in (self.before, self.after)]
        flat = {inner * one for side in sides for own, inner in side for one in own.strides}
        for side in sides:
            for own, inner in side:
                for stride in sorted(flat):
                    if inner <= stride <= inner * own.size:
                        # A remainder gives 0, which makes the caller refuse the reshape.
                        yield own, 0 if stride % inner else stride // inner


def _with_inner_sizes(side: Sequence[_Class]) -> Iterator[tuple[_Class, int]]:
    inner = 1
    for own in reversed(side):
        yield own, inner
        inner *= own.size


class Factors:
    """The factors of all dimensions of some tensors.

    Args:
        shapes: of the tensors, by name.
        ties: between their dimensions.

    Attributes:
        refused: names of the reshapes whose two sides have no common factors.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], ties: Sequence[Tie]) -> None:
        self._parent: dict[Dim, Dim] = {
            (name, dim): (name, dim) for name, shape in shapes.items() for dim in range(len(shape))
        }
        for tie in ties:
            if isinstance(tie, Same):
                self._parent[self._root(tie.one)] = self._root(tie.other)
        self._classes: dict[Dim, _Class] = {}
        for name, dim in self._parent:
            size = shapes[name][dim]
            own = self._classes.setdefault(
                self._root((name, dim)), _Class(size, sorted({1, size}), [])
            )
            assert own.size == size, f"{name} has {size} elements along {dim}, not {own.size}"
        self.refused: set[str] = set()
        for tie in ties:
            if isinstance(tie, Slice):
                part = _Part(self._of(tie.whole), self._of(tie.part), tie.start, tie.step)
                self._spread(part)
        for tie in ties:
            if isinstance(tie, Reshape):
                sides = (tuple(map(self._of, side)) for side in (tie.before, tie.after))
                if not self._spread(_Reshape(*sides)):
                    self.refused.add(tie.name)

    def of(self, name: str, dim: int) -> tuple[int, ...]:
        """Return the factors of a dimension, outermost first; empty for a dimension of one element.

        Args:
            name: of the tensor.
            dim: number of the dimension.
        """
        strides = self._of((name, dim)).strides
        return tuple(outer // inner for inner, outer in pairwise(strides))[::-1]

    def _root(self, dim: Dim) -> Dim:
        while self._parent[dim] != dim:
            self._parent[dim] = self._parent[self._parent[dim]]
            dim = self._parent[dim]
        return dim

    def _of(self, dim: Dim) -> _Class:
        return self._classes[self._root(dim)]

    def _spread(self, tie: _Reshape | _Part) -> bool:
        """Add a tie and what follows from it; undo everything if a reshape is impossible."""
        sides = (tie.whole, tie.part) if isinstance(tie, _Part) else (*tie.before, *tie.after)
        for own in sides:
            own.ties.append(tie)
        added: list[tuple[_Class, int]] = []
        queue, waiting = deque([tie]), {id(tie)}
        while queue:
            current = queue.popleft()
            waiting.discard(id(current))
            for own, stride in list(current.implied()):
                if stride in own.strides:
                    continue
                if stride == 0 or not _divide_each_other([*own.strides, stride]):
                    if isinstance(current, _Part):
                        continue  # a slice that is not a box of factors is copied
                    for changed, one in added:
                        changed.strides.remove(one)
                    for side in sides:
                        side.ties.remove(tie)
                    return False
                insort(own.strides, stride)
                added.append((own, stride))
                for other in own.ties:
                    if id(other) not in waiting:
                        waiting.add(id(other))
                        queue.append(other)
        return True


def _divide_each_other(strides: list[int]) -> bool:
    return all(outer % inner == 0 for inner, outer in pairwise(sorted(strides)))
