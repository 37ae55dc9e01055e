"""execute(): computes the result of a placed model."""

from collections.abc import Mapping
from typing import Any

import torch

from doppler.api.placed import Placed
from doppler.executor import Threads
from doppler.support.errors import InputError


def execute(placed: Placed, *args: Any, executor: Threads | None = None, **kwargs: Any) -> Any:
    """Execute a placed model on the cores of this host, which stand in for the devices.

    If it was placed within memory limits, it is executed within them (docs/memory.md).

    Args:
        placed: what `place` returned.
        args: arguments of the module; or the same tuple or dictionary as the example inputs. For a
            graph that was not made from a module: a dictionary of its inputs by name.
        executor: what executes it; by default threads that share the cores.
        kwargs: keyword arguments of the module.

    Returns:
        What the module returns. In training: that, and the new parameters by name. For a graph that
        was not made from a module: its results by name. Buffers that the module's forward updates,
        such as running means of norms, are updated.

    Raises:
        InputError: inputs that do not match the examples, a module on the meta device, a graph that
            does not say what its ops compute, or an op that fails.
    """
    binding = placed.binding
    if binding is None:
        if kwargs or len(args) != 1 or not isinstance(args[0], Mapping):
            raise InputError("execute: the inputs of a graph are tensors by name, in a dictionary")
        return _execute(placed, args[0], executor)
    args, kwargs = binding.call(args, kwargs)
    results = _execute(placed, binding.inputs(args, kwargs), executor)
    binding.write_effects(args, kwargs, results)
    parameters, returned = binding.new_parameters(results), binding.outputs(results)
    return (returned, parameters) if parameters else returned


def _execute(
    placed: Placed, inputs: Mapping[str, torch.Tensor], executor: Threads | None
) -> dict[str, torch.Tensor]:
    chosen: Any = executor or Threads(warm_up=0)
    mode = getattr(placed.system, "memory_mode", None)
    if mode is not None:  # a placement within memory limits is executed within them
        chosen = mode.applied(chosen)
    with chosen.open(placed.problem, inputs=inputs) as session:
        return session.results(placed.placement)
