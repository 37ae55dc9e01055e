"""Exports a torch module as a graph of core ATen ops, without computing anything."""

import io
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram, _trace, default_decompositions
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from doppler.extensions.modules.calling import (
    as_called_with_tensors,
    by_name,
    parameter_names,
)
from doppler.extensions.modules.decompositions import (
    DECOMPOSED,
    KEPT,
    attention,
    kernels_differentiated,
    plain_attention,
)
from doppler.extensions.modules.gradients import Returned, first_line, own_function, place_backward
from doppler.extensions.modules.trees import Flat, Tree, rebuilt
from doppler.support.errors import InputError
from doppler.support.files import check_size

# Large models have large parameters.
_MAX_MB = 1e6
# Loggers with levels of their own, which would override that of torch.
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


class Exported(NamedTuple):
    """An exported graph, and how its tensors belong to the module's arguments and results.

    Attributes:
        name: of the module's class.
        program: the graph, in core ATen ops.
        parameters: names of the arguments that the module takes by position.
        arguments: tree of what the module is called with.
        returned: tree of what the module returns, and whose gradients follow its results.
    """

    name: str
    program: ExportedProgram
    parameters: tuple[str, ...]
    arguments: Tree
    returned: Returned


def export(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any],
    *,
    training: bool,
) -> Exported:
    """Export a module for inputs of given shapes and dtypes; nothing is computed.

    Args:
        module: a module, whose parameters may be on the meta device, or a program that
            torch.export made.
        example_inputs: arguments by position; any containers of tensors.
        example_kwargs: arguments by keyword.
        training: whether the module returns its loss, and the graph is to return its gradients.

    Raises:
        InputError: torch.export fails; says where in the module and why. Or there is no loss.
    """
    if isinstance(module, ExportedProgram):
        arguments, returned = _trees(module)
        if not training:
            with quiet():
                return Exported(
                    "exported", _in_core_ops(module), (), arguments.tree, Returned(returned.tree)
                )
        # Only the shapes of examples matter, not their values.
        examples = [torch.empty(one.shape, dtype=one.dtype) for one in arguments.tensors]
        example_inputs, example_kwargs = rebuilt(arguments.tree, examples)
        own = module.module()
        parameters, name, label = (), "exported", "exported program"
        call = tuple(example_inputs), dict(example_kwargs)
    else:
        own, name = module, type(module).__name__
        _check_not_compiled(own, name)
        parameters, label = parameter_names(module.forward), name
        call = by_name(parameters, example_inputs, example_kwargs)
    given = Flat(call)
    positions = parameters[: len(example_inputs)] if not call[0] else ()
    tensors = given.tensors
    without_values = any(parameter.is_meta for parameter in own.parameters())
    if without_values:
        tensors = [tensor.to("meta") for tensor in tensors]
    device = torch.device("meta") if without_values else nullcontext()
    with quiet(), device, _path_of_calls(own) as path:
        try:
            shell, returned = as_called_with_tensors(own, label, given, positions, training)
            traced = _traced(shell, tuple(tensors), training)
            return Exported(name, _in_core_ops(traced), parameters, given.tree, returned[-1])
        except InputError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise InputError(
                f"{_where(label, path)}: a branch depends on the values of a tensor{_line(error)};"
                " compute both sides and choose by torch.where, or decide before the call"
            ) from None
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{_where(label, path)}: torch.export fails{own_function(error)}: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from None


def _check_not_compiled(module: nn.Module, label: str) -> None:
    for path, one in module.named_modules():
        if isinstance(one, torch.jit.ScriptModule):
            place = f"{label}, module {path!r}" if path else label
            raise InputError(
                f"{place}: compiled by torch.jit, which torch.export cannot read; place the module "
                "that it was made from"
            )


def _traced(module: nn.Module, tensors: tuple[torch.Tensor, ...], training: bool) -> Any:
    if not training:
        return torch.export.export(module, tensors, strict=False)
    # The public export records ops before autograd runs, so it would miss those of the backward.
    inside: Any = _trace
    with plain_attention(), kernels_differentiated(), preserve_node_meta():
        traced = inside._export(module, tensors, strict=False, pre_dispatch=False)
    place_backward(traced.graph)
    aten = torch.ops.aten
    for node in traced.graph.find_nodes(op="call_function", target=aten.view.default):
        # After decomposition the operand may have another memory layout, which view refuses.
        node.target = aten.reshape.default
    return traced


def _in_core_ops(program: ExportedProgram) -> ExportedProgram:
    table = default_decompositions()
    table[torch.ops.aten.scaled_dot_product_attention.default] = attention
    table.update(DECOMPOSED)
    for op in KEPT:
        table.pop(op, None)
    with kernels_differentiated():
        return program.run_decompositions(table)


def load_exported(path: str | Path, *, trust: bool = False) -> ExportedProgram:
    """Load a program that torch.export.save wrote.

    Args:
        path: of the file.
        trust: whether the file may execute code: torch unpickles parts of it, and evaluates the
            expressions of its shapes as Python.

    Raises:
        InputError: the file is not trusted, does not exist, or is not such a program.
    """
    check_size(path, max_mb=_MAX_MB)
    if not trust:
        raise InputError(f"{path}: torch may execute code of a .pt2 file: trust=True loads it")
    with quiet():
        try:
            return torch.export.load(path)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{path}: not an exported program: {reason}") from None


def _trees(program: ExportedProgram) -> tuple[Flat, Flat]:
    """Return the arguments of an exported program, by position and by keyword, and its results."""
    spec, signature = program.call_spec, program.graph_signature
    assert spec.in_spec is not None and spec.out_spec is not None
    given = [one.arg for one in signature.input_specs if one.kind == InputKind.USER_INPUT]
    made = [one.arg for one in signature.output_specs if one.kind == OutputKind.USER_OUTPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}

    def flat(leaves: Sequence[Any], tree: Any) -> Flat:
        known = [
            values[one.name] if isinstance(one, TensorArgument) else getattr(one, "value", 0)
            for one in leaves
        ]
        return Flat(pytree.tree_unflatten(known, tree))

    return flat(given, spec.in_spec), flat(made, spec.out_spec)


def _where(own: str, path: list[tuple[str, str]]) -> str:
    inner = [(name, kind) for name, kind in path if name]
    return f"{own}, module {inner[-1][0]!r} ({inner[-1][1]})" if inner else own


def _line(error: Exception) -> str:
    """Return the line of the user's code if torch's error names it."""
    lines = re.finditer(r'File "([^"]+)", line (\d+), in \w+\n\s*(.+)', str(error))
    ours = os.path.dirname(os.path.abspath(__file__))
    found = next((one for one in lines if not one[1].startswith(ours)), None)
    return f" ({found[1].rsplit('/', 1)[-1]}:{found[2]}: {found[3].strip()})" if found else ""


@contextmanager
def _path_of_calls(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Keep a list of the submodules being called, outermost first; one that fails stays in it."""
    path: list[tuple[str, str]] = []
    with ExitStack() as hooks:
        for name, one in module.named_modules():
            entry = (name, type(one).__name__)

            def enter(*_: Any, entry: tuple[str, str] = entry) -> None:
                path.append(entry)

            def leave(*_: Any) -> None:
                path.pop()

            hooks.callback(one.register_forward_pre_hook(enter).remove)
            hooks.callback(one.register_forward_hook(leave).remove)
        yield path


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings and logs; users get one line about what failed."""
    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental", "torch.export")]
    loggers += [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
