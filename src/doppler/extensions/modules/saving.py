"""A binding as plain data, with the values of parameters: what a file of it holds."""

import collections
import importlib
from collections.abc import Callable
from typing import Any

import torch

from doppler.extensions.modules.binding import Binding, GivenTensor, Result
from doppler.extensions.modules.structure import Home, Join, Structure
from doppler.extensions.modules.trees import PLAIN, Constant, Leaf, Object, Row, Tree
from doppler.support.errors import InputError

# What a file may name without being trusted, beside the outputs and caches of transformers.
_KNOWN = (tuple, list, dict, set, collections.OrderedDict, collections.deque, torch.Size)
_OF_TRANSFORMERS = ("modeling_outputs", "cache_utils", "tokenization_utils_base")


def binding_as_data(binding: Binding) -> dict[str, Any]:
    """Numbers, texts, lists, dictionaries and tensors; what is random is named only."""
    drawn = [name for name, compute in binding.computed.items() if name in binding.drawn]
    used = {*binding.from_state.values(), *map(str, binding.effects), *binding.steps}
    return {
        "name": binding.name,
        "parameters": list(binding.parameters),
        "arguments": _tree_as_data(binding.arguments),
        "returned": _tree_as_data(binding.returned),
        "given": [list(one) for one in binding.given],
        "shapes": dict(binding.shapes),
        "from_arguments": dict(binding.from_arguments),
        "from_state": dict(binding.from_state),
        "computed": {n: make() for n, make in binding.computed.items() if n not in drawn},
        "drawn": drawn,
        "results": [list(one) for one in binding.results],
        "effects": {target: list(one) for target, one in binding.effects.items()},
        "steps": {target: list(one) for target, one in binding.steps.items()},
        "structure": _structure_as_data(binding.structure),
        "state": {n: _kept(t) for n, t in binding.state.items() if n in used},
    }


def binding_of(data: Any, *, trust: bool = False) -> Binding:
    """The binding of what `binding_as_data` made.

    trust: it may name classes of any module, which is imported.

    Raises:
        InputError: it is something else, or names a class that is not known.
    """
    try:
        drawn = tuple(data["drawn"])
        constants = {name: _returning(tensor) for name, tensor in data["computed"].items()}
        return Binding(
            name=data["name"],
            parameters=tuple(data["parameters"]),
            arguments=_tree_of(data["arguments"], trust),
            returned=_tree_of(data["returned"], trust),
            given=tuple(
                GivenTensor(name, tuple(shape), dtype) for name, shape, dtype in data["given"]
            ),
            shapes={name: tuple(shape) for name, shape in data["shapes"].items()},
            from_arguments=data["from_arguments"],
            from_state=data["from_state"],
            computed={**constants, **{name: _refusing(name) for name in drawn}},
            drawn=drawn,
            results=tuple(map(_result, data["results"])),
            effects={target: _result(one) for target, one in data["effects"].items()},
            steps={target: _result(one) for target, one in data["steps"].items()},
            structure=_structure(data["structure"]),
            state=data["state"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"not what was saved of a module: {error!r}") from None


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU; of the meta device there is nothing but a shape."""
    return tensor.detach() if tensor.is_meta else tensor.detach().cpu()


def _result(data: Any) -> Result:
    name, shape = data
    return Result(name, tuple(shape))


def _structure_as_data(structure: Structure) -> list[Any]:
    """Without classes of ours: plain tuples."""
    pairs = [(path, source) for path, source in structure.homes]
    joins = [(path, homes) for path, homes in structure.joins]
    return [structure.tensors, list(structure.tied), pairs, joins, list(structure.reads)]


def _structure(data: Any) -> Structure:
    sizes, tied, homes, joins, reads = data
    return Structure(
        {str(name): int(size) for name, size in sizes.items()},
        tuple(tuple(map(str, names)) for names in tied),
        tuple(Home(str(path), int(source)) for path, source in homes),
        tuple(Join(str(path), tuple(map(int, own))) for path, own in joins),
        tuple((str(path), str(holder)) for path, holder in reads),
    )


def _returning(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


def _refusing(name: str) -> Callable[[], torch.Tensor]:
    def refuse() -> torch.Tensor:
        raise InputError(f"{name!r} is random, which is not saved: place the model again")

    return refuse


def _tree_as_data(tree: Tree) -> list[Any]:
    match tree:
        case Leaf(number):
            return ["leaf", number]
        case Constant(value) if isinstance(value, PLAIN) and not isinstance(value, torch.device):
            return ["constant", value]
        case Constant(value) if isinstance(value, type):
            return ["class", _class_name(value)]
        case Constant(value):
            return ["opaque", type(value).__name__]
        case Row(kind, children):
            return ["sequence", _class_name(kind), [_tree_as_data(one) for one in children]]
    pairs = (
        [[key, _tree_as_data(child)] for key, child in part]
        for part in (tree.items, tree.attributes)
    )
    return ["object", _class_name(tree.kind), *pairs, list(tree.both)]


def _tree_of(data: Any, trust: bool) -> Tree:
    word, first, *rest = data
    match word:
        case "leaf":
            return Leaf(int(first))
        case "constant":
            return Constant(first)
        case "class":
            return Constant(_class_of(first, trust))
        case "sequence":
            kind = _class_of(first, trust)
            if not issubclass(kind, tuple | list | collections.deque):
                raise ValueError(f"{first} is no sequence")
            return Row(kind, tuple(_tree_of(one, trust) for one in rest[0]))
        case "object":
            items, attributes = (
                tuple((key, _tree_of(child, trust)) for key, child in part) for part in rest[:2]
            )
            return Object(_class_of(first, trust), items, attributes, tuple(rest[2]))
    return Constant(None)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_of(name: str, trust: bool) -> type:
    """A class by name; of those that are not known only where the file is trusted."""
    for known in _KNOWN:
        if name == _class_name(known):
            return known
    module, _, path = name.partition(":")
    package, *rest = module.split(".")
    is_of_transformers = package == "transformers" and rest in ([one] for one in _OF_TRANSFORMERS)
    if not (trust or is_of_transformers):
        raise InputError(f"{name!r} is a class of others: trust=True imports it")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise InputError(f"{name!r} is not there: install what the module was made with") from None
    if not isinstance(found, type):
        raise InputError(f"{name!r} is no class")
    return found
