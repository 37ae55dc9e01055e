"""A part of a configuration against what it names.

What has a ``_target_`` is held against the signature of what that names, everything else against
the annotation of its key (doppler.support.options).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationKeyError, OmegaConfBaseException

from doppler.support.errors import InputError
from doppler.support.options import Parameters, arms, check, fault, is_plain, parameters, shown

# What Hydra understands in a part that has a ``_target_``.
_HYDRAS: Mapping[str, Any] = {
    "_target_": Any,
    "_partial_": bool,
    "_recursive_": bool,
    "_convert_": Literal["none", "partial", "object", "all"],
}
# What is known only when a part is made: a logger's directory.
_GIVEN = ("save_dir",)
# What to do with a path that has such characters.
LITERAL = r"a ${ that refers to nothing is written \${"
# Of names in a message.
_LISTED = 12


def check_part(where: str, kind: Any, value: Any) -> None:
    """Refuse a part that is not of a kind.

    Args:
        where: its full key.
        kind: an annotation, as `doppler.support.options.fault` takes; a class or protocol: what its
            ``_target_`` makes.
        value: of a configuration.

    Raises:
        InputError: names the key in this part that is unknown, missing, or of another kind.
    """
    made = [arm for arm in arms(kind) if not is_plain(arm)]
    if isinstance(value, DictConfig):
        if "_target_" in value and made:
            _check_call(where, made, value)
            return
        for arm in arms(kind):
            if is_typeddict(arm):
                check_keys(where, parameters(arm), value)
                return
            if get_origin(arm) is Mapping:
                for key in value:
                    inner = _joined(where, key)
                    check_part(inner, get_args(arm)[1], value_of(value, key, where))
                return
    if isinstance(value, ListConfig):
        for arm in arms(kind):
            if get_origin(arm) is Sequence and not is_plain(get_args(arm)[0]):
                for i in range(len(value)):
                    check_part(f"{where}[{i}]", get_args(arm)[0], value_of(value, i, where))
                return
    plain = _resolved(where, value)
    if made and fault(kind, plain):
        line = f"{where}: must be settings with a _target_, got {shown(plain)}"
        if isinstance(plain, str) and inspect.isclass(made[0]):
            line += f"; {made[0].__name__.strip('_').lower()}@{where}={plain} chooses it"
        raise InputError(line)
    check(where, kind, plain)


def check_keys(where: str, keys: Parameters, part: DictConfig) -> None:
    """Refuse a part whose keys, or their values, are not these.

    Raises:
        InputError: see `check_part`.
    """
    check_names(where, keys, part)
    present = set(part)
    for key, kind in keys.known.items():
        if key in present:
            check_part(_joined(where, key), kind, value_of(part, key, where))


def check_names(where: str, keys: Parameters, part: DictConfig) -> None:
    """Refuse keys that are unknown, and a part that lacks one.

    Raises:
        InputError: names the key, and those that are close to one that is unknown.
    """
    present = list(part)
    for key in present:
        if key not in keys.known and key not in _HYDRAS and not keys.takes_any:
            raise InputError(unknown(_joined(where, key), keys.known))
    given = keys.required if "_partial_" in present and part._partial_ else _GIVEN
    lacking = [key for key in keys.known if key in keys.required and key not in (*present, *given)]
    lacking += [key for key in present if OmegaConf.is_missing(part, key)]
    for key in lacking:
        raise InputError(f"{_joined(where, key)}: is missing")


def unknown(where: str, known: Iterable[Any]) -> str:
    """One line on a key that is none, with its nearest neighbours."""
    names = sorted(map(str, known))
    close = get_close_matches(where.rpartition(".")[2], names, n=1)
    if close:
        return f"{where}: no such option, did you mean {close[0]}?"
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return f"{where}: no such option" + (f", there are {listed}" if names else "")


def target_of(part: DictConfig, where: str) -> Callable[..., Any]:
    """What the ``_target_`` of a part names.

    Raises:
        InputError: it cannot be imported, or called.
    """
    name = value_of(part, "_target_", where)
    try:
        target = _named(name) if isinstance(name, str) else None
    except Exception as error:  # whatever a module raises when it is imported
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{where}._target_: {name!r} cannot be imported: {reason}") from None
    if not callable(target):
        raise InputError(f"{where}._target_: {shown(name)} is no class or function")
    return target


def value_of(part: DictConfig | ListConfig, key: Any, where: str = "") -> Any:
    """The value of a key, what it is taken from looked up.

    Raises:
        InputError: what it is taken from is not there.
    """
    try:
        return part[key]
    except OmegaConfBaseException as error:
        raise InputError(f"{_joined(where, key)}: {_first_line(error)}") from error


def _check_call(where: str, kinds: Sequence[Any], part: DictConfig) -> None:
    target = target_of(part, where)
    if not part.get("_partial_") and not any(_makes(target, kind) for kind in kinds):
        names = " or ".join(getattr(kind, "__name__", str(kind)).strip("_") for kind in kinds)
        raise InputError(f"{where}._target_: {part._target_!r} is no {names}")
    for key in set(part).intersection(_HYDRAS):
        check(_joined(where, key), _HYDRAS[str(key)], value_of(part, key, where))
    check_keys(where, parameters(target), part)


def _named(name: str) -> Any:
    """What stands under a dotted name; a class or function before a module of its name."""
    path, *rest = name.split(".")
    found: Any = import_module(path)
    for each in rest:
        path = f"{path}.{each}"
        if inspect.ismodule(found) and not hasattr(found, each):
            import_module(path)
        found = getattr(found, each)
    return found


def _makes(target: Callable[..., Any], kind: Any) -> bool:
    """Whether what a class or function makes can be of a kind; True where nobody says."""
    if not inspect.isclass(kind):
        return True
    made = target if inspect.isclass(target) else get_type_hints(target).get("return", Any)
    classes = [arm for arm in arms(made) if inspect.isclass(arm)]
    if getattr(kind, "_is_protocol", False):
        needs = [key for key, each in vars(kind).items() if inspect.isfunction(each)]
        needs = [key for key in needs if not key.startswith("_")]
        return not classes or any(all(hasattr(arm, key) for key in needs) for arm in classes)
    return not classes or any(issubclass(arm, kind) for arm in classes)


def _resolved(where: str, value: Any) -> Any:
    """As plain lists and dictionaries."""
    if not isinstance(value, DictConfig | ListConfig):
        return value
    try:
        return OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as error:
        raise InputError(f"{where}: {_first_line(error)}") from error


def _first_line(error: OmegaConfBaseException) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, InterpolationKeyError | GrammarParseError):
        return f"{line}: {LITERAL}"
    return line


def _joined(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
