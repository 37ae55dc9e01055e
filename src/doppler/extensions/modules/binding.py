"""Bindings map the tensors of a torch module to those of its program, before a run and after it."""

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
    """A tensor that the module is called with, as in the example.

    Attributes:
        name: of the tensor.
        shape: of the tensor.
        dtype: of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Result(NamedTuple):
    """A result of the program.

    Attributes:
        name: of the result in the program.
        shape: that the module gives it.
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Binding:
    """What a module is called with, holds and returns, as inputs and results of its program.

    Every input of the program is in exactly one of ``from_arguments``, ``from_state`` and
    ``computed``.

    Attributes:
        name: of the module's class.
        digest: of the program; equal for equal programs.
        learning_rate: of the training step; None: no training.
        parameters: names of the arguments that the module takes by position.
        arguments: tree of what the module is called with.
        returned: tree of what the module returns.
        given: tensors of the arguments.
        shapes: shape of each input of the program.
        from_arguments: for inputs that are arguments, the number of the tensor in ``given``.
        from_state: for inputs that are state of the module, the name in ``state``.
        computed: for all other inputs, a function that computes them before each run.
        drawn: names of the computed inputs that are random.
        results: for each tensor that the module returns.
        effects: results that are written into an argument (by its number in ``given``) or into
            the state (by its name).
        steps: parameters after a training step, by name.
        structure: how the module can be divided.
        state: parameters, buffers and constants, by name.
    """

    name: str
    digest: str
    learning_rate: float | None
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
        """Return a call; a single argument may stand for all arguments (see `as_call`).

        Args:
            args: by position.
            kwargs: by keyword.
        """
        if kwargs or len(args) != 1 or isinstance(args[0], torch.Tensor):
            return args, kwargs
        for call in ((args, kwargs), as_call(args[0], {})):
            with suppress(InputError):
                self.tensors(*call)
                return call
        return args, kwargs

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call, in the order of ``given``.

        Args:
            args: by position.
            kwargs: by keyword.

        Raises:
            InputError: the arguments differ from the example in structure, shape or dtype.
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
        """Return the inputs of the program by name, on the CPU.

        Args:
            args: of the call, by position.
            kwargs: of the call, by keyword.

        Raises:
            InputError: the arguments differ from the example, or parameters have no values.
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
                raise InputError(
                    f"{name!r} is on the meta device, so it has no values to run with: place the "
                    "module that has them, with doppler.place(module, inputs), or give it to what "
                    "was saved: doppler.Placed.load(directory, module=module)"
                )
            inputs[name] = tensor.detach().cpu().reshape(shape)
        return inputs

    def outputs(self, results: Mapping[str, torch.Tensor]) -> Any:
        """Return what the module returns.

        Args:
            results: of the program, by name.
        """
        return rebuilt(self.returned, [_found(results, one) for one in self.results])

    def new_parameters(self, results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the parameters after the training step, by name; empty without training.

        Args:
            results: of the program, by name.
        """
        return {name: _found(results, one) for name, one in self.steps.items()}

    def write_effects(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, torch.Tensor]
    ) -> None:
        """Write what the module would write into its state and arguments, such as running means.

        Args:
            args: of the call, by position.
            kwargs: of the call, by keyword.
            results: of the program, by name.
        """
        tensors = self.tensors(args, kwargs) if self.effects else []
        with torch.no_grad():
            for target, result in self.effects.items():
                into = tensors[target] if isinstance(target, int) else self.state[target]
                into.copy_(_found(results, result))


def _found(results: Mapping[str, torch.Tensor], one: Result) -> torch.Tensor:
    return results[one.name].reshape(one.shape)


def as_call(inputs: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as the arguments of a call, by position and by keyword.

    Args:
        inputs: a tensor, a tuple or list of arguments by position, or a mapping of arguments by
            keyword, such as a tokenizer returns; None: no arguments.
        kwargs: further arguments by keyword.
    """
    if inputs is None:
        return (), dict(kwargs)
    if isinstance(inputs, Mapping):
        return (), {**inputs, **kwargs}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), dict(kwargs)
    return (inputs,), dict(kwargs)
