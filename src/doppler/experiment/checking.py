"""Checks a part of a configuration by the signatures and annotations that describe it.

A part with a ``_target_`` is checked by the signature of that class or function, everything else by
the annotation of its key (doppler.support.options). Hydra itself would notice a wrong key or value
only when it calls the target, after files have been read and the problem has been built.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationKeyError, OmegaConfBaseException

from doppler.support.errors import InputError
from doppler.support.options import (
    FilePath,
    Parameters,
    arms,
    check,
    fault,
    is_plain,
    parameters,
    shown,
)

# Hydra would log the error that `target_of` raises anyway.
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)

# Keys that Hydra understands in every part with a ``_target_``.
_HYDRAS: Mapping[str, Any] = {
    "_target_": Any,
    "_partial_": bool,
    "_recursive_": bool,
    "_convert_": Literal["none", "partial", "object", "all"],
}
# Arguments that a run adds when it instantiates the part: the directory of a logger.
_ADDED_LATER = ("save_dir",)
# A hint for users whose paths contain these characters.
ESCAPED = r"a ${ that refers to nothing is written \${"
# How many names a message lists.
_LISTED = 12


def resolved(cfg: DictConfig, key: str) -> Any:
    """Return the value of a key as plain dictionaries and lists, with all references resolved.

    Args:
        cfg: the configuration.
        key: a key at its top level.

    Raises:
        InputError: names the key whose reference leads nowhere.
    """
    try:
        value = cfg[key]
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, InterpolationKeyError | GrammarParseError):
            line = f"{line}: {ESCAPED}"
        raise InputError(f"{error.full_key or key}: {line}") from error


def check_part(where: str, kind: Any, value: Any) -> None:
    """Refuse a part of the configuration that does not fit an annotation.

    Args:
        where: the full key of the part.
        kind: the annotation, as `doppler.support.options.fault` understands it. A part with a
            ``_target_`` fits a class or protocol if the target returns an instance of it.
        value: the part as plain dictionaries and lists.

    Raises:
        InputError: names the key in this part that is unknown, missing or of the wrong type.
    """
    alternatives = arms(kind)
    objects = [arm for arm in alternatives if not is_plain(arm)]
    for arm in alternatives:
        if isinstance(value, Mapping):
            if arm in objects and "_target_" in value:
                _check_call(where, objects, value)
                return
            if is_typeddict(arm):
                check_keys(where, parameters(arm), value)
                return
            if get_origin(arm) is Mapping:
                for key, each in value.items():
                    check_part(_joined(where, key), get_args(arm)[1], each)
                return
        elif isinstance(value, list) and get_origin(arm) is Sequence:
            inner = get_args(arm)[0]
            if not all(map(is_plain, arms(inner))):
                for i, each in enumerate(value):
                    check_part(f"{where}[{i}]", inner, each)
                return
    if objects and fault(kind, value):
        line = f"{where}: must be settings with a _target_, got {shown(value)}"
        if isinstance(value, str) and inspect.isclass(objects[0]):
            line += f"; {objects[0].__name__.strip('_').lower()}@{where}={value} chooses it"
        raise InputError(line)
    line = fault(kind, value)
    if line and FilePath in (kind, *get_args(kind)) and value is not None:
        line += f"; a path that reads as something else is quoted: \"{where}='{value}'\""
    if line:
        raise InputError(f"{where}: {line}")


def check_keys(where: str, keys: Parameters, part: Mapping[Any, Any]) -> None:
    """Refuse a part with an unknown key, a missing key or a wrong value.

    Args:
        where: the full key of the part.
        keys: the keys that the part may and must have.
        part: the part as plain dictionaries and lists.

    Raises:
        InputError: names the key, as in `check_part`.
    """
    check_names(where, keys, part)
    for key, kind in keys.known.items():
        if key in part:
            check_part(_joined(where, key), kind, part[key])


def check_names(where: str, keys: Parameters, part: Mapping[Any, Any]) -> None:
    """Refuse unknown keys, and a part that lacks a required one.

    Args:
        where: the full key of the part.
        keys: the keys that the part may and must have.
        part: the part; only its keys are read.

    Raises:
        InputError: names the key, and a known one that is spelled similarly.
    """
    for key in part:
        if key not in keys.known and key not in _HYDRAS and not keys.takes_any:
            raise InputError(unknown(_joined(where, key), keys.known))
    later = keys.required if part.get("_partial_") else _ADDED_LATER
    for key in keys.known:
        if key in keys.required and key not in part and key not in later:
            raise InputError(f"{_joined(where, key)}: is missing")


def unknown(where: str, known: Iterable[Any]) -> str:
    """Return one line about an unknown key, with the known key that is spelled most similarly.

    Args:
        where: the full key that is unknown.
        known: the keys that exist there.
    """
    names = sorted(map(str, known))
    close = get_close_matches(where.rpartition(".")[2], names, n=1)
    if close:
        nearest = _joined(where.rpartition(".")[0], close[0])
        return f"{where}: no such option, did you mean {nearest}?"
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return f"{where}: no such option" + (f", there are {listed}" if names else "")


def target_of(part: Mapping[Any, Any], where: str) -> Callable[..., Any]:
    """Return the class or function that the ``_target_`` of a part names.

    Args:
        part: the part of the configuration.
        where: its full key, for the message.

    Raises:
        InputError: the target cannot be imported or called.
    """
    name = part["_target_"]
    target = None
    if isinstance(name, str):
        try:
            target = get_object(name)
        except Exception as error:  # a module may raise anything when it is imported
            cause = error.__cause__ or error
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
            raise InputError(f"{where}._target_: {name!r} cannot be imported: {reason}") from None
    if not callable(target):
        raise InputError(f"{where}._target_: {shown(name)} is not a class or function")
    return target


def _check_call(where: str, kinds: Sequence[Any], part: Mapping[Any, Any]) -> None:
    target = target_of(part, where)
    if not part.get("_partial_") and not any(_makes(target, kind) for kind in kinds):
        names = " or ".join(getattr(kind, "__name__", str(kind)).strip("_") for kind in kinds)
        raise InputError(f"{where}._target_: {part['_target_']!r} is not a {names}")
    for key in _HYDRAS.keys() & part.keys():
        check(_joined(where, key), _HYDRAS[key], part[key])
    check_keys(where, parameters(target), part)


def _makes(target: Callable[..., Any], kind: Any) -> bool:
    """Whether a class or function returns this kind of object; True if a function does not say."""
    if not inspect.isclass(kind):
        return True
    returned = target if inspect.isclass(target) else get_type_hints(target).get("return", Any)
    if returned is Any and inspect.isfunction(target):  # Any is a class
        return True
    classes = [arm for arm in arms(returned) if inspect.isclass(arm)]
    if getattr(kind, "_is_protocol", False):
        needs = [key for key, each in vars(kind).items() if inspect.isfunction(each)]
        needs = [key for key in needs if not key.startswith("_")]
        return not classes or any(all(hasattr(arm, key) for key in needs) for arm in classes)
    return not classes or any(issubclass(arm, kind) for arm in classes)


def _joined(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
