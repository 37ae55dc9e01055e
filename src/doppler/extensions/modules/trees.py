"""Trees: the structure of a module's arguments or results, apart from their tensors.

A tree is made from one example, and keeps the types of its containers, its numbers and its strings.
Containers are tuples, lists, dictionaries, dataclasses, and any objects with tensors in their
attributes, such as the caches and outputs of transformers. They are rebuilt without calling their
classes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import torch

from doppler.support.errors import InputError

# Types of constants in arguments, beside tensors.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Leaf:
    """A tensor.

    Attributes:
        number: of the tensor among all tensors.
    """

    number: int


@dataclass(frozen=True)
class Constant:
    """A value that is neither a tensor nor contains one.

    Attributes:
        value: as in the example.
    """

    value: Any


@dataclass(frozen=True)
class Unsaved:
    """Stands for a constant that cannot be saved, in what was loaded.

    Attributes:
        kind: name of its class.
    """

    kind: str


@dataclass(frozen=True)
class Row:
    """A tuple, a list, a deque, or an object of a subclass.

    Attributes:
        kind: its class.
        children: trees of its elements.
    """

    kind: type
    children: tuple["Tree", ...]


@dataclass(frozen=True)
class Object:
    """A dictionary, or an object with attributes.

    Attributes:
        kind: its class.
        items: keys and trees of its items, if it is a dictionary.
        attributes: names and trees of its attributes.
        both: attributes that are also items, as in outputs of transformers.
    """

    kind: type
    items: tuple[tuple[Any, "Tree"], ...]
    attributes: tuple[tuple[str, "Tree"], ...]
    both: tuple[str, ...] = ()


Tree: TypeAlias = Leaf | Constant | Row | Object


class Flat:
    """A nested container, taken apart.

    Args:
        nested: the container.

    Attributes:
        tensors: in the order of items and attributes.
        tree: the structure.
    """

    def __init__(self, nested: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        self._above: set[int] = set()
        self.tree = self._tree(nested)

    def _tree(self, one: Any) -> Tree:
        if isinstance(one, torch.Tensor):
            self.tensors.append(one)
            return Leaf(len(self.tensors) - 1)
        opaque = isinstance(one, type) or (callable(one) and not isinstance(one, dict))
        if isinstance(one, (*PLAIN, np.ndarray)) or opaque or id(one) in self._above:
            return Constant(one)
        self._above.add(id(one))
        num = len(self.tensors)
        tree = self._branch(one)
        self._above.discard(id(one))
        # A subclass of a container may be made in a way of its own; a named tuple is not.
        kinds = (tuple, list, dict, torch.Size)
        is_container = type(one) in kinds or hasattr(type(one), "_make")
        return tree if is_container or len(self.tensors) > num else Constant(one)

    def _branch(self, one: Any) -> Tree:
        if isinstance(one, tuple | list | deque):
            return Row(type(one), tuple(map(self._tree, one)))
        items = dict(one) if isinstance(one, dict) else {}
        attributes = _attributes(one)
        both = [key for key in attributes if key in items and items[key] is attributes[key]]
        return Object(
            type(one),
            tuple((key, self._tree(child)) for key, child in items.items()),
            tuple((key, self._tree(child)) for key, child in attributes.items() if key not in both),
            tuple(both),
        )


def _attributes(one: Any) -> dict[str, Any]:
    """Attributes of an object, also those in ``__slots__``, by the names that it has for them."""
    found: dict[str, Any] = {}
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            own = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            if own not in ("__dict__", "__weakref__") and hasattr(one, own):
                found[own] = getattr(one, own)
    return found | dict(getattr(one, "__dict__", {}))


def rebuilt(tree: Tree, tensors: Sequence[Any]) -> Any:
    """Return a nested container of a tree's structure.

    Args:
        tree: the structure.
        tensors: the new leaves, by number.
    """
    match tree:
        case Leaf(number):
            return tensors[number]
        case Constant(value):
            # A copy, because the receiver may change it, as models fill an empty cache.
            return deepcopy(value) if hasattr(value, "__dict__") and not callable(value) else value
        case Row(kind, children):
            made = [rebuilt(child, tensors) for child in children]
            make = getattr(kind, "_make", kind)
            return make(made)
    base: Any = next(one for one in (OrderedDict, dict, object) if issubclass(tree.kind, one))
    new: Any = base.__new__(tree.kind)
    for key, child in tree.items:
        base.__setitem__(new, key, rebuilt(child, tensors))
    for key, child in tree.attributes:
        object.__setattr__(new, key, rebuilt(child, tensors))
    for key in tree.both:
        object.__setattr__(new, key, new[key])
    return new


def tensors_like(tree: Tree, nested: Any, what: str) -> list[torch.Tensor]:
    """Return the tensors of a container in the order of the example.

    Args:
        tree: the structure of the example.
        nested: the container, which must have the same structure.
        what: subject of errors.

    Raises:
        InputError: the structure, a number or a string differs from the example; says where.
    """
    flat = Flat(nested)
    numbers: dict[int, int] = {}
    for path, one, other in _pairs(tree, flat.tree, ()):
        if isinstance(one, Leaf) and isinstance(other, Leaf):
            numbers[one.number] = other.number
            continue
        place = ".".join(map(str, path[1:])) or "what it is called with"
        given, known = _told(other), _told(one)
        known = "another one" if given == known else known
        is_lost = isinstance(one, Constant) and isinstance(one.value, Unsaved)
        remedy = "in this process" if is_lost else "with the arguments of its calls"
        raise InputError(
            f"{what}: {place} is {given}, in the example it was {known}: place the model {remedy}"
        )
    return [flat.tensors[numbers[k]] for k in range(len(numbers))]


def leaf_numbers(tree: Tree) -> Iterator[int]:
    """Yield the numbers of all tensors, in the order of the tree.

    Args:
        tree: to walk.
    """
    match tree:
        case Leaf(number):
            yield number
        case Row(_, children):
            for child in children:
                yield from leaf_numbers(child)
        case Object():
            for _, child in (*tree.items, *tree.attributes):
                yield from leaf_numbers(child)


def leaf_paths(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every tensor, such as ``(1, "mask")``.

    Args:
        tree: to walk.
        path: of the tree itself.
    """
    match tree:
        case Leaf():
            yield path
        case Row(_, children):
            for k, child in enumerate(children):
                yield from leaf_paths(child, (*path, k))
        case Object():
            for key, child in (*tree.items, *tree.attributes):
                yield from leaf_paths(child, (*path, key))


def _pairs(
    one: Tree, other: Tree, path: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Tree, Tree]]:
    """Yield the pairs of leaves of two trees, and the pairs of subtrees that differ."""
    match one, other:
        case Leaf(), Leaf():
            yield path, one, other
        case Constant(value), Constant(given) if _alike(value, given):
            pass
        case Row(), Row() if one.kind is other.kind and len(one.children) == len(other.children):
            for k, pair in enumerate(zip(one.children, other.children, strict=True)):
                yield from _pairs(*pair, (*path, k))
        case Object(), Object():
            own = dict((*one.items, *one.attributes))
            others = dict((*other.items, *other.attributes))
            if one.kind is not other.kind or own.keys() != others.keys():
                yield path, one, other
                return
            for key in own:
                yield from _pairs(own[key], others[key], (*path, key))
        case _:
            yield path, one, other


def _alike(one: Any, other: Any, above: tuple[int, ...] = ()) -> bool:
    """Whether two values without tensors are the same to a module."""
    if one is other or id(one) in above:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, PLAIN):
        return one == other or one != one
    attributes, others = _attributes(one), _attributes(other)
    if attributes and not callable(one) and not isinstance(one, Enum):
        above = (*above, id(one))
        if attributes.keys() != others.keys() or not all(
            _alike(value, others[key], above) for key, value in attributes.items()
        ):
            return False
        if not isinstance(one, tuple | list | deque | dict | set | frozenset):
            return True
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


def _told(tree: Tree) -> str:
    match tree:
        case Leaf():
            return "a tensor"
        case Constant(Unsaved(kind)):
            return f"a {kind}, which cannot be saved"
        case Constant(value):
            is_short = isinstance(value, (*PLAIN, Enum))
            return repr(value)[:60] if is_short else f"a {type(value).__name__}"
        case Row(kind, children):
            return f"a {kind.__name__} of {len(children)}"
    keys = ", ".join(str(key) for key, _ in (*tree.items, *tree.attributes))
    return f"a {tree.kind.__name__} of {keys}"
