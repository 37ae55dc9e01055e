"""execute(): what a placed model computes."""

from collections.abc import Mapping
from typing import Any

import torch

from doppler.api.placed import Placed
from doppler.executor import Threads
from doppler.support.errors import InputError


def execute(placed: Placed, *args: Any, executor: Threads | None = None, **kwargs: Any) -> Any:
    """Execute a placed model on this host, as it is placed: its cores stand for the devices.

    What was placed within memory limits is executed within them (docs/memory.md).

    Args:
        placed: what `place` returned.
        args: what the module is called with; or the tuple, or dictionary by keyword, of it, as it
            was placed with. Of a graph that is no module's, its inputs by name.
        executor: what executes it; threads that share the cores by default.
        kwargs: what the module is called with by keyword.

    Returns:
        What the module returns; if it is trained, that and its new parameters by name; of a graph
        that is no module's, its results by name. What the module's forward writes, such as running
        means of norms in training, is written.

    Raises:
        InputError: inputs that are not like the examples, a module on the meta device, a graph that
            does not say what its ops compute, an op that fails.
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
    if mode is not None:  # placed within memory limits: executed within them
        chosen = mode.applied(chosen)
    with chosen.open(placed.problem, inputs=inputs) as session:
        return session.results(placed.placement)
