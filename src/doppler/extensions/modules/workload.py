"""The workload of a user's torch module."""

import importlib
import importlib.util
import math
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from doppler.cluster import Cluster
from doppler.einsum.lowering import lower
from doppler.einsum.program import Input, Program
from doppler.einsum.workload import Decomposition
from doppler.extensions.modules.module import import_module
from doppler.graph import DataflowGraph
from doppler.graph.scalar import DTYPES
from doppler.support.errors import InputError
from doppler.support.options import Count, FilePath, checked
from doppler.system import MemoryMode, Refuse


@checked
def load_module(
    *,
    module: FilePath,
    cluster: Cluster,
    decomposition: Decomposition,
    parts: Count,
    name: str | None = None,
    training: bool = False,
    learning_rate: float = 1e-3,
    memory: MemoryMode | None = None,
) -> DataflowGraph:
    """Call a function that makes a torch module; export, decompose and lower the module.

    Args:
        module: ``FILE.py:factory`` or ``package.module:factory`` (see `make_module`).
        cluster: where it will run.
        decomposition: chooses the splits.
        parts: number of ops into which the decomposition aims to split one contraction.
        name: of the graph; None: that of the module's class.
        training: whether the module returns its loss; backward and a step of gradient descent are
            added.
        learning_rate: of that step.
        memory: the memory mode; if it is None or `Refuse`, parameters and inputs must fit into the
            memory of all devices together.

    Raises:
        InputError: the factory does not exist, fails, or returns something else; or as
            `import_module`, `check_memory` and the decomposition raise it.
    """
    model, examples, keywords = make_module(module)
    imported = import_module(
        model, examples, keywords, training=training, learning_rate=learning_rate
    )
    program = imported.program
    if memory is None or isinstance(memory, Refuse):
        check_memory(program, cluster)
    return lower(program, decomposition.splits(program, parts), name=name)


def make_module(
    factory: str, key: str = "workload.module", device: str = "meta"
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Call a function that makes a torch module.

    Args:
        factory: ``FILE.py:function``, or ``package.module:function``, which is imported from the
            working directory or as installed. The function returns a module, the tuple of its
            example inputs and, optionally, a dictionary of example inputs by keyword.
        key: name of the option in errors.
        device: torch's default device during the call; on ``meta`` parameters take no memory.

    Returns:
        The module, its inputs by position, and its inputs by keyword.

    Raises:
        InputError: the function does not exist, fails, or returns something else.
    """
    with torch.device(device):
        try:
            made = _find(factory, key)()
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{key}: {factory} fails: {type(error).__name__}: {reason} "
                f"({os.path.basename(at.filename)}:{at.lineno}, called on the {device} device)"
            ) from None
    match made:
        case (nn.Module() as module, torch.Tensor() as example):
            return module, (example,), {}
        case (nn.Module() as module, tuple() | list() as examples):
            return module, tuple(examples), {}
        case (nn.Module() as module, tuple() | list() as examples, dict() as keywords):
            return module, tuple(examples), keywords
    raise InputError(
        f"{key}: {factory} returned {type(made).__name__}, not a torch module and the "
        "tuple of its example inputs"
    )


def _find(factory: str, key: str) -> Callable[[], Any]:
    path, colon, name = factory.rpartition(":")
    if not (path and colon and name):
        raise InputError(
            f"{key}: {factory!r} is neither FILE.py:function nor package.module:function"
        )
    folder = os.path.dirname(os.path.abspath(path)) if path.endswith(".py") else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = _from_file(path) if path.endswith(".py") else importlib.import_module(path)
    except FileNotFoundError:
        raise InputError(f"{key}: {path}: No such file") from None
    except ModuleNotFoundError as error:
        raise InputError(
            f"{key}: {path!r} cannot be imported: {error} (looked in {folder} and "
            "installed packages)"
        ) from None
    function = getattr(found, name, None)
    if not callable(function):
        raise InputError(f"{key}: {path!r} has no function {name!r}")
    return function


def _from_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path, path)
    assert spec is not None and spec.loader is not None, "it ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look for it there
    spec.loader.exec_module(module)
    return module


def check_memory(program: Program, cluster: Cluster) -> None:
    """Refuse a program whose inputs alone need more memory than all devices have.

    Args:
        program: to check.
        cluster: that has the devices.

    Raises:
        InputError: says how much memory there is, and what can be done.
    """
    need = sum(
        math.prod(node.shape) * DTYPES[node.dtype]
        for node in program.nodes
        if isinstance(node, Input)
    )
    have = sum(device.memory_bytes for device in cluster.devices)
    if need > have:
        raise InputError(
            f"{program.name}: its parameters and inputs take {need / 1e9:.3g} GB, but the "
            f"{cluster.num_devices} devices of {cluster.name!r} have {have / 1e9:.3g} GB: use a "
            "machine with more devices, half precision or memory=offload, or place a part of the "
            "module"
        )
