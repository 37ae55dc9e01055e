"""Builds objects that a YAML file describes as conf/ does: ``_target_`` and its arguments.

In a file that somebody else may have written, the target is looked up in a list, not imported.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from doppler.support.errors import InputError
from doppler.support.files.values import unknown_key
from doppler.support.files.yaml_format import read_yaml

TARGET = "_target_"


def build_described(
    path: str | Path,
    what: str,
    makers: Mapping[str, Callable[..., Any]],
    *,
    trust: bool = False,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Call the function that a file names, with the arguments that the file gives.

    Args:
        path: of the file.
        what: the file should describe, for messages.
        makers: functions that the file may name, by dotted name; they take plain data.
        trust: whether the file may name any class or function that can be imported, at any depth,
            and interpolate values. Such a file may execute code.
        given: arguments that replace those of the file.

    Raises:
        InputError: names the file, and the target or the key.
    """
    described = read_yaml(path)
    if not isinstance(described, dict) or TARGET not in described:
        raise InputError(f"{path}: does not describe a {what}: it has no {TARGET}")
    described |= given or {}
    target = str(described[TARGET])
    if trust and target not in makers:
        return _instantiate(path, described)
    if target not in makers:
        raise InputError(
            f"{path}: {TARGET}: {target[:60]!r} is not one of {', '.join(makers)}; anything "
            "else may execute code, and needs --trust (trust=True)"
        )
    arguments = {key: value for key, value in described.items() if key != TARGET}
    _check_plain(path, arguments)
    make = makers[target]
    parameters = inspect.signature(make).parameters
    for key in arguments:
        if key not in parameters:
            raise InputError(f"{path}: {unknown_key('', key, parameters)}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            raise InputError(f"{path}: {name!r} is missing")
    try:
        return make(**arguments)
    except (InputError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None


def _check_plain(path: str | Path, value: Any, where: str = "") -> None:
    """Refuse values that a configuration would interpolate or instantiate."""
    if isinstance(value, str) and "${" in value:
        raise InputError(f"{path}: {where}: {value[:40]!r}: interpolated values need --trust")
    if isinstance(value, dict):
        for key, one in value.items():
            if str(key).startswith("_") and str(key).endswith("_"):
                raise InputError(f"{path}: {where}{'.' if where else ''}{key}: needs --trust")
            _check_plain(path, one, f"{where}{'.' if where else ''}{key}")
    if isinstance(value, list):
        for i, one in enumerate(value):
            _check_plain(path, one, f"{where}[{i}]")


def _instantiate(path: str | Path, described: dict[str, Any]) -> Any:
    from hydra.errors import HydraException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return instantiate(OmegaConf.create(described))
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        raise InputError(f"{path}: {str(cause).splitlines()[0]}") from None
