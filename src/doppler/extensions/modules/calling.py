"""How a module is called: names of its arguments, and a version of it that takes only tensors."""

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from doppler.extensions.modules.gradients import Gradients, Returned
from doppler.extensions.modules.trees import Flat, Tree, leaf_paths, rebuilt


def as_called_with_tensors(
    module: nn.Module, name: str, given: Flat, positions: Sequence[str], training: bool
) -> tuple[nn.Module, list[Returned]]:
    """Wrap a module so that it takes tensors and returns a tuple of tensors.

    The wrapper has the module's class name and state. It calls the module itself, so hooks see what
    they always see.

    Args:
        module: the user's.
        name: of the module in errors.
        given: what the module is called with.
        positions: names of the arguments that ``given`` has by keyword, but that are passed by
            position.
        training: whether the gradients of the loss are further results.

    Returns:
        The wrapper, and a list to which every call of it appends the structure of its results.
    """
    returned: list[Returned] = []
    gradients = Gradients(module, name) if training else None

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = rebuilt(given.tree, tensors)
        args = (*args, *(kwargs.pop(one) for one in positions))
        if gradients is not None:
            made, results = gradients(args, kwargs)
        else:
            result = Flat(module(*args, **kwargs))
            made, results = Returned(result.tree), result.tensors
        returned.append(made)
        return tuple(results)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one, kind) for one in _leaf_names(given.tree)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body = {"forward": property(lambda _: forward), "_call_impl": lambda _, *args: forward(*args)}
    shell = object.__new__(type(type(module).__name__, (nn.Module,), body))
    object.__setattr__(shell, "__dict__", vars(module))
    return shell, returned


def by_name(
    parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert a call's arguments by position to arguments by keyword if possible.

    Args:
        parameters: names of the arguments by position.
        args: by position.
        kwargs: by keyword.

    Returns:
        The arguments by position and by keyword. They are unchanged if there are more of them than
        names, or if a name is given twice.
    """
    named = dict(zip(parameters, args, strict=False))
    if len(args) > len(parameters) or named.keys() & kwargs.keys():
        return tuple(args), dict(kwargs)
    return (), {**named, **kwargs}


def parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that a forward takes by position.

    Args:
        forward: of a module.

    Returns:
        The names; empty if the forward takes any number of arguments.
    """
    try:
        known = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    if any(one.kind in kinds for one in known):
        return ()
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return tuple(one.name for one in known if one.kind == both)


def _leaf_names(tree: Tree) -> list[str]:
    """Make unique names for the tensors of a call, from their places in the arguments."""
    names: list[str] = []
    for by_keyword, *path in leaf_paths(tree):
        name = re.sub(r"\W", "_", "_".join(map(str, path)))
        fits = by_keyword and name.isidentifier() and not keyword.iskeyword(name)
        name = name if fits else f"input_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names
