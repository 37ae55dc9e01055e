"""Converts bindings, with the values of parameters, to plain data for a file, and back."""

import collections
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from typing import Any, TypeVar

import numpy as np
import torch

from doppler.extensions.modules.binding import Binding, GivenTensor, Result
from doppler.extensions.modules.structure import Home, Join, Structure
from doppler.extensions.modules.trees import (
    PLAIN,
    Constant,
    Leaf,
    Object,
    Row,
    Tree,
    Unsaved,
    leaf_numbers,
    rebuilt,
)
from doppler.support.errors import InputError
from doppler.support.files.values import (
    fault,
    read_integer,
    read_number,
    read_object,
    read_shape,
    read_text,
)

# Classes that an untrusted file may name, besides outputs and caches of transformers.
# Numbers of NumPy, which are saved with their class: its arithmetic is another than Python's.
_NUMPY: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(np.bool_, np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    )
}
_KNOWN = (tuple, list, dict, set, collections.OrderedDict, collections.deque, torch.Size)
_OF_TRANSFORMERS = (
    "transformers.modeling_outputs",
    "transformers.cache_utils",
    "transformers.tokenization_utils_base",
)
_BASES = {
    "transformers.cache_utils.Cache",
    "transformers.cache_utils.CacheLayerMixin",
    "transformers.tokenization_utils_base.BatchEncoding",
    "transformers.utils.generic.ModelOutput",
}
_KEYS = (
    *(
        "name",
        "digest",
        "learning_rate",
        "parameters",
        "arguments",
        "returned",
        "given",
        "shapes",
        "from_arguments",
    ),
    *("from_state", "computed", "drawn", "results", "effects", "steps", "structure", "state"),
)
_Value = TypeVar("_Value")


def binding_as_data(binding: Binding) -> dict[str, Any]:
    """Convert a binding to numbers, strings, lists, dictionaries and tensors.

    Of random inputs only the names are kept.

    Args:
        binding: to convert.
    """
    drawn = [name for name, compute in binding.computed.items() if name in binding.drawn]
    used = {*binding.from_state.values(), *map(str, binding.effects), *binding.steps}
    return {
        "name": binding.name,
        "digest": binding.digest,
        "learning_rate": binding.learning_rate,
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


def unsaved_arguments(binding: Binding) -> list[str]:
    """Return what of the arguments cannot be saved, such as ``settings.how (a function)``.

    Args:
        binding: to be saved.
    """
    found: list[str] = []

    def look(tree: Tree, path: tuple[Any, ...]) -> None:
        match tree:
            case Constant(value):
                word, kind, *_ = _constant_as_data(value)
                if word == "opaque":
                    found.append(f"{'.'.join(map(str, path[1:]))} (a {kind})")
            case Row(_, children):
                for k, child in enumerate(children):
                    look(child, (*path, k))
            case Object():
                for key, child in (*tree.items, *tree.attributes):
                    if _is_opaque(_key_as_data(key)):
                        found.append(f"the key {str(key)[:60]} (a {type(key).__name__})")
                    look(child, (*path, key))

    look(binding.arguments, ())
    return found


def _is_opaque(key: Any) -> bool:
    """Whether a key, as data, or a part of it cannot be restored."""
    parts = key[1] if isinstance(key, list) and key[0] == "tuple" else [key]
    return any(isinstance(one, list) and one[0] == "opaque" for one in parts)


def binding_of(data: Any, *, trust: bool = False) -> Binding:
    """Restore a binding from the data of `binding_as_data`.

    Args:
        data: numbers, strings, lists, dictionaries and tensors; all of it is checked.
        trust: whether the data may name classes of any module, which is then imported.

    Raises:
        InputError: the data has another form, or names a class that is not known.
    """
    row = read_object(data, "", _KEYS)
    drawn, rate = tuple(_texts(row["drawn"], "drawn")), row["learning_rate"]
    constants = _by_name(row["computed"], "computed", _tensor)
    try:
        arguments, returned = (_tree_of(row[key], trust, key) for key in ("arguments", "returned"))
    except RecursionError:
        raise InputError("its arguments are nested too deeply") from None
    computed = {name: _returning(tensor) for name, tensor in constants.items()}
    binding = Binding(
        name=read_text(row["name"], "name"),
        digest=read_text(row["digest"], "digest"),
        learning_rate=None if rate is None else read_number(rate, "learning_rate"),
        parameters=tuple(_texts(row["parameters"], "parameters")),
        arguments=arguments,
        returned=returned,
        given=tuple(_given(one, "given") for one in _sequence(row["given"], "given")),
        shapes=_by_name(row["shapes"], "shapes", _shape),
        from_arguments=_by_name(row["from_arguments"], "from_arguments", read_integer),
        from_state=_by_name(row["from_state"], "from_state", read_text),
        computed={**computed, **{name: _refusing(name) for name in drawn}},
        drawn=drawn,
        results=tuple(_result(one, "results") for one in _sequence(row["results"], "results")),
        effects={
            target: _result(one, f"effects.{target}")
            for target, one in _dictionary(row["effects"], "effects").items()
        },
        steps=_by_name(row["steps"], "steps", _result),
        structure=_structure(row["structure"], "structure"),
        state=_by_name(row["state"], "state", _tensor),
    )
    _check(binding, constants)
    return binding


def _check(binding: Binding, constants: Mapping[str, torch.Tensor]) -> None:
    """Raise an InputError if the parts of a binding do not fit together."""
    num = len(binding.given)
    if sorted(leaf_numbers(binding.arguments)) != list(range(num)):
        raise InputError(f"arguments: does not have each of the {num} tensors of 'given' once")
    if any(k not in range(len(binding.results)) for k in leaf_numbers(binding.returned)):
        raise InputError(
            f"returned: has a tensor that is not one of {len(binding.results)} results"
        )
    for name, shape in binding.shapes.items():
        sources = (binding.from_arguments, binding.from_state, binding.computed)
        if sum(name in one for one in sources) != 1:
            raise InputError(f"shapes: {name!r} is not of the arguments, the state or computed")
        if name in binding.drawn:
            continue
        found, elements = constants.get(name), 0
        if name in binding.from_arguments:
            number = binding.from_arguments[name]
            if number not in range(num):
                raise InputError(f"from_arguments.{name}: there is no tensor {number}")
            elements = math.prod(binding.given[number].shape)
        elif name in binding.from_state:
            found = binding.state.get(binding.from_state[name])
            if found is None:
                raise InputError(f"from_state.{name}: there is no {binding.from_state[name]!r}")
        elements = elements if found is None else found.numel()
        if elements != math.prod(shape):
            raise InputError(f"shapes: {name!r} has {elements} elements, not shape {shape}")
    for target in (*binding.effects, *binding.steps):
        if target not in (range(num) if type(target) is int else binding.state):
            raise InputError(f"effects, steps: {target!r} is not a tensor of the module")
    for tree, leaves in ((binding.arguments, num), (binding.returned, len(binding.results))):
        try:
            rebuilt(tree, [None] * leaves)
        except Exception as error:  # classes that a file names can raise anything
            reason = str(error).split("\n")[0] or type(error).__name__
            raise InputError(f"arguments, returned: cannot be rebuilt: {reason}") from None


def _sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise fault(where, "a list", value)
    return value


def _texts(value: Any, where: str) -> list[str]:
    return [read_text(one, where) for one in _sequence(value, where)]


def _shape(value: Any, where: str) -> tuple[int, ...]:
    return read_shape(list(_sequence(value, where)), where)


def _dictionary(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise fault(where, "a dictionary", value)
    return value


def _by_name(value: Any, where: str, read: Callable[[Any, str], _Value]) -> dict[str, _Value]:
    return {
        read_text(name, where): read(one, f"{where}.{name}")
        for name, one in _dictionary(value, where).items()
    }


def _tensor(value: Any, where: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise fault(where, "a tensor", type(value).__name__)
    return value


def _given(value: Any, where: str) -> GivenTensor:
    name, shape, dtype = _so_many(value, 3, where)
    if not isinstance(dtype, torch.dtype):
        raise fault(where, "a dtype", dtype)
    return GivenTensor(read_text(name, where), _shape(shape, where), dtype)


def _result(value: Any, where: str) -> Result:
    name, shape = _so_many(value, 2, where)
    return Result(read_text(name, where), _shape(shape, where))


def _so_many(value: Any, num: int, where: str) -> Sequence[Any]:
    if len(_sequence(value, where)) != num:
        raise fault(where, f"{num} entries", value)
    return value


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU; one on the meta device stays, because it has only a shape."""
    return tensor.detach() if tensor.is_meta else tensor.detach().cpu()


def _structure_as_data(structure: Structure) -> list[Any]:
    """Convert a structure to plain tuples and lists, without our classes."""
    pairs = [(path, source) for path, source in structure.homes]
    joins = [(path, homes) for path, homes in structure.joins]
    return [structure.tensors, list(structure.tied), pairs, joins, list(structure.reads)]


def _structure(value: Any, where: str) -> Structure:
    sizes, tied, homes, joins, reads = _so_many(value, 5, where)
    return Structure(
        _by_name(sizes, where, read_integer),
        tuple(tuple(_texts(names, where)) for names in _sequence(tied, where)),
        tuple(Home(*_named(one, read_integer, where)) for one in _sequence(homes, where)),
        tuple(Join(*_named(one, _integers, where)) for one in _sequence(joins, where)),
        tuple(_named(one, read_text, where) for one in _sequence(reads, where)),
    )


def _named(value: Any, read: Callable[[Any, str], _Value], where: str) -> tuple[str, _Value]:
    name, what = _so_many(value, 2, where)
    return read_text(name, where), read(what, where)


def _integers(value: Any, where: str) -> tuple[int, ...]:
    return tuple(read_integer(one, where) for one in _sequence(value, where))


def _returning(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


def _refusing(name: str) -> Callable[[], torch.Tensor]:
    def refuse() -> torch.Tensor:
        raise InputError(f"{name!r} is random, which is not saved: load it with its module")

    return refuse


def _tree_as_data(tree: Tree) -> list[Any]:
    match tree:
        case Leaf(number):
            return ["leaf", number]
        case Constant(value):
            return _constant_as_data(value)
        case Row(kind, children):
            return ["sequence", _class_name(kind), [_tree_as_data(one) for one in children]]
    pairs = (
        [[_key_as_data(key), _tree_as_data(child)] for key, child in part]
        for part in (tree.items, tree.attributes)
    )
    return ["object", _class_name(tree.kind), *pairs, list(tree.both)]


def _constant_as_data(value: Any) -> list[Any]:
    # A member of an enumeration or a number of NumPy may also be a text or a number of Python,
    # but a file with its class could not be read without executing code.
    if isinstance(value, Flag):  # members together have no name of their own
        plain = type(value.value) is int
        return ["flag", _class_name(type(value)), value.value] if plain else _opaque(value)
    if isinstance(value, Enum):
        return ["enum", _class_name(type(value)), value.name]
    if type(value) in _NUMPY.values():
        return ["numpy", type(value).__name__, value.item()]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if type(value) in PLAIN:
        return ["constant", value]
    if isinstance(value, type):
        return ["class", _class_name(value)]
    return _opaque(value)


def _opaque(value: Any) -> list[Any]:
    return ["opaque", type(value).__name__]


def _key_as_data(key: Any) -> Any:
    """Return a plain key, or a tuple of such keys, as it is; another one as a list."""
    parts = key if type(key) is tuple else (key,)
    if all(type(one) in PLAIN and type(one) is not torch.device for one in parts):
        return key
    if type(key) is tuple:
        return ["tuple", [_constant_as_data(one) for one in parts]]
    return _constant_as_data(key)


def _tree_of(data: Any, trust: bool, where: str) -> Tree:
    word, first, *rest = (*_sequence(data, where), None, None)[: max(2, len(data))]
    match word:
        case "leaf":
            return Leaf(read_integer(first, where))
        case "constant" if isinstance(first, PLAIN):
            return Constant(first)
        case "class":
            return Constant(_class_of(first, trust))
        case "enum" if len(rest) == 1 and isinstance(rest[0], str):
            kind = _class_of(first, trust)
            if not issubclass(kind, Enum) or rest[0] not in kind.__members__:
                raise fault(where, "a member of an enumeration", data)
            return Constant(kind[rest[0]])
        case "flag" if len(rest) == 1 and type(rest[0]) is int:
            kind = _class_of(first, trust)
            if not issubclass(kind, Flag):
                raise fault(where, "a member of an enumeration", data)
            return Constant(kind(rest[0]))
        case "numpy" if first in _NUMPY and len(rest) == 1 and isinstance(rest[0], PLAIN):
            try:
                return Constant(_NUMPY[first](rest[0]))
            except (TypeError, ValueError, OverflowError):
                raise fault(where, "a number of NumPy", data) from None
        case "device":
            try:
                return Constant(torch.device(read_text(first, where)))
            except RuntimeError:
                raise fault(where, "a device of torch", first) from None
        case "opaque":
            return Constant(Unsaved(read_text(first, where)))
        case "tuple":  # as a key
            parts = [_tree_of(one, trust, where) for one in _sequence(first, where)]
            values = tuple(one.value for one in parts if isinstance(one, Constant))
            if len(values) < len(parts) or any(isinstance(one, Unsaved) for one in values):
                raise fault(where, "a key that can be saved", data)
            return Constant(values)
        case "sequence" if len(rest) == 1:
            kind = _class_of(first, trust)
            if not issubclass(kind, tuple | list | collections.deque):
                raise InputError(f"{where}: {first!r} is not a sequence")
            return Row(
                kind, tuple(_tree_of(one, trust, where) for one in _sequence(rest[0], where))
            )
        case "object" if len(rest) == 3:
            kind = _class_of(first, trust)
            if kind in _KNOWN and not issubclass(kind, dict):
                raise InputError(f"{where}: {first!r} has neither items nor attributes")
            items, attributes = (
                tuple(_pair(one, trust, where) for one in _sequence(part, where))
                for part in rest[:2]
            )
            both = _sequence(rest[2], where)
            for name in (*(key for key, _ in attributes), *both):
                if not isinstance(name, str) or name.startswith("__"):
                    raise fault(where, "the name of an attribute", name)
            return Object(kind, items, attributes, tuple(both))
    raise fault(where, "a leaf, constant, class, sequence or object", data)


def _pair(data: Any, trust: bool, where: str) -> tuple[Any, Tree]:
    key, child = _so_many(data, 2, where)
    if isinstance(key, list):
        found = _tree_of(key, trust, where)
        # Keys that were not saved would be equal, and values under them would be lost.
        if not isinstance(found, Constant) or isinstance(found.value, Unsaved):
            raise fault(where, "a key that can be saved", key)
        key = found.value
    elif not all(isinstance(one, PLAIN) for one in (key if isinstance(key, tuple) else (key,))):
        raise fault(where, "a number or text as key", key)
    return key, _tree_of(child, trust, where)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_of(name: Any, trust: bool) -> type:
    """Return a class by its name.

    An untrusted file may name only containers, and outputs and caches of transformers, but nothing
    else that can be reached through their modules: even deleting an object of another class may
    execute code.
    """
    name = read_text(name, "class")
    for known in _KNOWN:
        if name == _class_name(known):
            return known
    module, _, path = name.partition(":")
    if not trust and (module not in _OF_TRANSFORMERS or not path.isidentifier()):
        raise InputError(f"{name!r} is a class of another package: trust=True imports it")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        raise InputError(
            f"{name!r} cannot be imported: install the package that the module came from"
        ) from None
    if not isinstance(found, type):
        raise InputError(f"{name!r} is not a class")
    bases = {f"{base.__module__}.{base.__qualname__}" for base in found.__mro__}
    if not trust and (found.__module__ != module or not bases & _BASES):
        raise InputError(f"{name!r} is not an output or cache: it needs trust=True")
    return found
