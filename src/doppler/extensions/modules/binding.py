"""Binding: how the tensors of a torch module are those of a program, before a run and after it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from doppler.extensions.modules.calling import by_name
from doppler.extensions.modules.structure import Structure
from doppler.extensions.modules.trees import Tree, rebuilt, tensors_like
from doppler.support.errors import InputError


class GivenTensor(NamedTuple):
    """A tensor that the module is called with, as the example had it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Result(NamedTuple):
    """A result of the program, and the shape that the module gives it."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Binding:
    """What a module is called with, holds and returns, as inputs and results of its program.

    Attributes:
        name: the module's class.
        parameters: names of its arguments by position.
        arguments, returned: the trees of both.
        given: per tensor of the arguments.
        shapes: per input of the program its shape there, and below, by its name, one of: which
            tensor of the arguments it is, the name of the state it is, or what computes it anew,
            which is random if it is among ``drawn``.
        results: per tensor that is returned.
        effects: what is written into a tensor of the arguments, by its number, or of the state, by
            its name.
        steps: parameters after a step of training.
        structure: into which parts the module can be divided.
        state: parameters, buffers and constants by name.
    """

    name: str
    parameters: tuple[str, ...]
    arguments: Tree
    returned: Tree
    given: tuple[GivenTensor, ...]
    shapes: Mapping[str, tuple[int, ...]]
    from_arguments: Mapping[str, int]
    from_state: Mapping[str, str]
    computed: Mapping[str, Callable[[], torch.Tensor]] = field(repr=False)
    drawn: tuple[str, ...]
    results: tuple[Result, ...]
    effects: Mapping[int | str, Result]
    steps: Mapping[str, Result]
    structure: Structure
    state: Mapping[str, torch.Tensor] = field(repr=False)

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call; its one argument may stand for all, as example inputs do (see `as_call`)."""
        if kwargs or len(args) != 1 or isinstance(args[0], torch.Tensor):
            return args, kwargs
        for call in ((args, kwargs), as_call(args[0], {})):
            with suppress(InputError):
                self.tensors(*call)
                return call
        return args, kwargs

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call.

        Raises:
            InputError: the arguments are not like the example inputs.
        """
        call = by_name(self.parameters, args, kwargs)
        tensors = tensors_like(self.arguments, call, self.name)
        for like, tensor in zip(self.given, tensors, strict=True):
            if (tuple(tensor.shape), tensor.dtype) != (like.shape, like.dtype):
                raise InputError(
                    f"{self.name}: {like.name!r} has shape {tuple(tensor.shape)} and "
                    f"{tensor.dtype}, the example had {like.shape} and {like.dtype}"
                )
        return tensors

    def inputs(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, torch.Tensor]:
        """The inputs of the program: the module's parameters and buffers, and what it is given.

        Raises:
            InputError: the arguments are not like the example inputs, or parameters have no values.
        """
        inputs, tensors = {}, self.tensors(args, kwargs or {})
        for name, shape in self.shapes.items():
            if name in self.from_arguments:
                tensor = tensors[self.from_arguments[name]]
            elif name in self.from_state:
                tensor = self.state[self.from_state[name]]
            else:
                tensor = self.computed[name]()
            if tensor.is_meta:
                raise InputError(f"{name!r} is on the meta device, so it has no values to run with")
            inputs[name] = tensor.detach().cpu().reshape(shape)
        return inputs

    def outputs(self, results: Mapping[str, torch.Tensor]) -> Any:
        """What the module returns, from the results of the program."""
        return rebuilt(self.returned, [_found(results, one) for one in self.results])

    def new_parameters(self, results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters after the step, by the module's names; none if nothing is trained."""
        return {name: _found(results, one) for name, one in self.steps.items()}

    def write_effects(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, torch.Tensor]
    ) -> None:
        """Write what the module's forward would: running means of norms, caches in place."""
        tensors = self.tensors(args, kwargs) if self.effects else []
        with torch.no_grad():
            for target, result in self.effects.items():
                into = tensors[target] if isinstance(target, int) else self.state[target]
                into.copy_(_found(results, result))


def _found(results: Mapping[str, torch.Tensor], one: Result) -> torch.Tensor:
    return results[one.name].reshape(one.shape)


def as_call(inputs: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as a call: a tensor, what is given by position, or by keyword, and the rest.

    inputs: a dictionary, or what a tokenizer returns, is what is given by keyword.
    """
    if inputs is None:
        return (), dict(kwargs)
    if isinstance(inputs, Mapping):
        return (), {**inputs, **kwargs}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), dict(kwargs)
    return (inputs,), dict(kwargs)
