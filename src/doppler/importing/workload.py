"""A workload that is a torch module of the user's."""

import importlib
import math
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from doppler.cluster import Cluster
from doppler.einsum.lowering import lower
from doppler.einsum.program import Input, Program
from doppler.einsum.workload import Decomposition
from doppler.errors import InputError
from doppler.graph import DataflowGraph
from doppler.graph.scalar import DTYPES
from doppler.importing.module import import_module


def load_module(
    *,
    module: str,
    cluster: Cluster,
    decomposition: Decomposition,
    parts: int,
    name: str | None = None,
    training: bool = False,
    learning_rate: float = 1e-3,
) -> DataflowGraph:
    """Call a function that makes a torch module, export it, decompose it and lower it.

    Args:
        module: ``package.module:factory``, found from where the process runs or as installed. The
            factory returns a module and the tuple of its example inputs; it is called on the meta
            device, so that parameters take no memory.
        cluster: where it will run; it has to have room for the parameters.
        decomposition: what chooses the splits.
        parts: how many ops it aims at for one contraction.
        name: of the graph; that of the module's class by default.
        training: the module returns its loss; backward and a step of gradient descent are added.
        learning_rate: of that step.

    Raises:
        InputError: the factory does not exist, fails, or returns something else; or as
            `import_module`, `check_memory` and the decomposition do.
    """
    made = make_module(module)
    program = import_module(*made, training=training, learning_rate=learning_rate).program
    check_memory(program, cluster)
    return lower(program, decomposition.splits(program, parts), name=name)


def make_module(factory: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Call ``package.module:factory`` on the meta device."""
    with torch.device("meta"):
        try:
            made = _find(factory)()
        except InputError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"workload.module: {factory} fails: {type(error).__name__}: {reason} "
                f"({os.path.basename(at.filename)}:{at.lineno}, called on the meta device)"
            ) from None
    match made:
        case (nn.Module() as module, torch.Tensor() as example):
            return module, (example,)
        case (nn.Module() as module, tuple() | list() as examples):
            return module, tuple(examples)
    raise InputError(
        f"workload.module: {factory} returned {type(made).__name__}, not a torch module and the "
        "tuple of its example inputs"
    )


def _find(factory: str) -> Callable[[], Any]:
    path, colon, name = factory.partition(":")
    if not (path and colon and name):
        raise InputError(f"workload.module: {factory!r} is not package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise InputError(
            f"workload.module: {path!r} cannot be imported: {error} (looked in {os.getcwd()} and "
            "what is installed)"
        ) from None
    function = getattr(found, name, None)
    if not callable(function):
        raise InputError(f"workload.module: {path!r} has no function {name!r}")
    return function


def check_memory(program: Program, cluster: Cluster) -> None:
    """Refuse a program whose inputs alone need more memory than all devices have.

    Raises:
        InputError: says how much there is, and what can be done.
    """
    need = sum(
        math.prod(node.shape) * DTYPES[node.dtype]
        for node in program.nodes
        if isinstance(node, Input)
    )
    have = sum(device.memory_bytes for device in cluster.devices)
    if need > have:
        raise InputError(
            f"{program.name}: its parameters and inputs hold {need / 1e9:.3g} GB, the "
            f"{cluster.num_devices} devices of {cluster.name!r} {have / 1e9:.3g} GB: use more "
            "devices (cluster.num_devices=N), half precision, or place a part of the module"
        )
