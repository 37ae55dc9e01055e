"""How a module is called: by which names, with which tensors, and which result is its loss."""

import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from doppler.extensions.modules.trees import Flat, Tree, leaf_paths, rebuilt
from doppler.support.errors import InputError


@contextmanager
def called_with_tensors(
    module: nn.Module, given: Flat, training: bool
) -> Iterator[list[tuple[Tree, int]]]:
    """Within, the module's forward takes tensors, and returns a tuple of tensors.

    Yields:
        A list to which every call adds the tree of what the forward returned, and which is its
        loss.
    """
    own, returned = module.forward, []

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = rebuilt(given.tree, tensors)
        result = Flat(own(*args, **kwargs))
        loss = loss_of(type(module).__name__, result) if training else 0
        returned.append((result.tree, loss))
        if not training:
            return tuple(result.tensors)
        return tuple(one if k == loss else one.detach() for k, one in enumerate(result.tensors))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in _leaf_names(given.tree)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    had = vars(module).get("forward")
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield returned
    finally:
        if had is None:
            del module.forward
        else:
            module.forward = had


def loss_of(name: str, result: Flat) -> int:
    """Which tensor is the loss: the one of this name, or else the first."""
    paths = [path[-1:] for path in leaf_paths(result.tree)]
    loss = paths.index(("loss",)) if ("loss",) in paths else 0
    if not result.tensors or result.tensors[loss].shape or not _is_real(result.tensors[loss]):
        raise InputError(
            f"{name}: training=true needs a module that returns its loss, one real number, alone, "
            "first, or as 'loss'"
        )
    return loss


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


def by_name(
    parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with its arguments by keyword, whose names are given, as far as that can be said."""
    named = dict(zip(parameters, args, strict=False))
    if len(args) > len(parameters) or named.keys() & kwargs.keys():
        return tuple(args), dict(kwargs)
    return (), {**named, **kwargs}


def parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """By which names a forward takes what it is given by position; none if it takes any number."""
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
    """Of the tensors that a module is called with: parameters' names, and where in them."""
    names: list[str] = []
    for by_keyword, *path in leaf_paths(tree):
        name = re.sub(r"\W", "_", "_".join(map(str, path)))
        fits = by_keyword and name.isidentifier() and not keyword.iskeyword(name)
        name = name if fits else f"input_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names
