"""Saves the module of a placed model in a directory, and loads it in another process."""

import logging
import math
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from doppler.extensions.modules import Binding, import_module
from doppler.extensions.modules.saving import binding_as_data, binding_of, unsaved_arguments
from doppler.extensions.modules.trees import rebuilt
from doppler.graph import DataflowGraph
from doppler.support.errors import InputError
from doppler.support.files import check_size

_MODULE = "module.pt"
# Large models have large parameters.
_MAX_MB = 1e6


def save_binding(binding: Binding, directory: Path) -> None:
    """Write a binding, with the parameters of its module; warn of arguments that are lost.

    Args:
        binding: to save.
        directory: to write into.
    """
    path = directory / _MODULE
    torch.save(binding_as_data(binding), path)
    lost = unsaved_arguments(binding)
    if lost:
        logging.getLogger(__name__).warning(
            "%s: %s cannot be saved, so only this process can execute the placement",
            binding.name,
            ", ".join(lost),
        )


def load_binding(
    directory: Path,
    graph: DataflowGraph,
    *,
    module: nn.Module | ExportedProgram | None = None,
    trust: bool,
) -> Binding | None:
    """Read what `save_binding` wrote.

    Args:
        directory: to read from.
        graph: as which the module was placed.
        module: that was placed; its state replaces the saved one, which may have no values.
        trust: whether the file may name classes of any module, which is then imported.

    Returns:
        The binding; None if no module was saved.

    Raises:
        InputError: names the file; or the module computes something else.
    """
    path = directory / _MODULE
    if not path.exists():
        return None
    check_size(path, max_mb=_MAX_MB)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch can raise anything, and its message suggests to trust the file
        raise InputError(f"{path}: unreadable (damaged, or not plain data)") from None
    try:
        binding = binding_of(data, trust=trust)
        _check(binding, graph)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return binding if module is None else _binding_again(module, binding)


def _binding_again(module: nn.Module | ExportedProgram, saved: Binding) -> Binding:
    """Return the binding of a module that was placed before."""
    if not isinstance(module, nn.Module | ExportedProgram):
        raise InputError(
            f"module: must be a torch module or an exported program, got {type(module).__name__}"
        )
    examples = [torch.empty(one.shape, dtype=one.dtype) for one in saved.given]
    args, kwargs = rebuilt(saved.arguments, examples)
    training = {} if saved.learning_rate is None else {"learning_rate": saved.learning_rate}
    found = import_module(module, args, kwargs, training=bool(training), **training).binding
    if found.digest != saved.digest:
        raise InputError(
            f"module: {found.name} does not compute what was placed ({saved.name}): the ops, "
            "shapes, dtypes, names or the mode (train or eval) differ; place it again"
        )
    return found


def _check(binding: Binding, graph: DataflowGraph) -> None:
    """Raise an InputError if the inputs or results of the graph differ from the module's."""
    taken = {graph.tensors[number] for number in set(graph.inputs.node.tolist()) if graph.tensors}
    for tensor in taken:
        if binding.shapes.get(tensor.name) != tensor.shape:
            raise InputError(f"shapes: has no input {tensor.name!r} of the graph")
    made = {tensor.name: math.prod(tensor.shape) for tensor in graph.tensors if tensor.is_output}
    for one in (*binding.results, *binding.effects.values(), *binding.steps.values()):
        if made.get(one.name) != math.prod(one.shape):
            raise InputError(f"results: {one.name!r} is not a result of the graph")
