"""run(): what a placed model computes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from doppler.api.placed import Placed
from doppler.errors import InputError
from doppler.executor import Threads


def run(
    placed: Placed,
    inputs: Sequence[Any] | torch.Tensor | Mapping[str, torch.Tensor],
    *,
    executor: Threads | None = None,
) -> Any:
    """Execute a placed model on this host, as it is placed: its cores stand for the devices.

    Args:
        placed: what `place` returned.
        inputs: what the module is called with; of a graph that is no module's, its inputs by name.
        executor: what executes it; threads that share the cores by default.

    Returns:
        What the module returns; if it is trained, that and its new parameters by name; of a graph
        that is no module's, its results by name.

    Raises:
        InputError: inputs that are not like the examples, a module on the meta device, a graph that
            does not say what its ops compute, an op that fails.
    """
    source = placed.source
    if source is None:
        if not isinstance(inputs, Mapping):
            raise InputError("run: the inputs of a graph are tensors by name, in a dictionary")
        return _execute(placed, inputs, executor)
    if isinstance(inputs, Mapping):
        raise InputError("run: the inputs of a module are what it is called with, in a tuple")
    arguments = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    results = _execute(placed, source.inputs(arguments), executor)
    parameters = source.new_parameters(results)
    returned = source.outputs(results)
    return (returned, parameters) if parameters else returned


def _execute(
    placed: Placed, inputs: Mapping[str, torch.Tensor], executor: Threads | None
) -> dict[str, torch.Tensor]:
    executor = executor or Threads(warm_up=0)
    with executor.open(placed.problem, inputs=inputs) as session:
        return session.results(placed.placement)
