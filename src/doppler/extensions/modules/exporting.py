"""A torch module as a graph of core ATen ops, on tensors without elements."""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from doppler.extensions.modules.calling import (
    by_name,
    called_with_tensors,
    loss_of,
    parameter_names,
)
from doppler.extensions.modules.decompositions import DECOMPOSED, attention, plain_attention
from doppler.extensions.modules.trees import Flat, Tree
from doppler.support.errors import InputError
from doppler.support.files import check_size

# Parameters of large models.
_MAX_MB = 1e6
# Their own levels would win over that of torch.
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


class Exported(NamedTuple):
    """A graph, and how its user's tensors are what the module is called with and returns.

    name: of the module's class. program: in core ATen ops; traced: as torch.export made it, which
    knows what has no gradient. parameters: names of what is given by position. loss: which of the
    tensors that are returned, if it is trained.
    """

    name: str
    program: ExportedProgram
    traced: ExportedProgram
    parameters: tuple[str, ...]
    arguments: Tree
    returned: Tree
    loss: int


def export(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any],
    *,
    training: bool,
) -> Exported:
    """Export a module for inputs of the given shapes and dtypes; nothing is computed.

    Args:
        module: its parameters may be on the meta device; or what torch.export made of one.
        example_inputs: what it is called with, by position; anything that holds tensors.
        example_kwargs: the same, by keyword.
        training: the module returns its loss, and gradients will be of nothing else.

    Raises:
        InputError: says where in the module torch.export fails, and why; or there is no loss.
    """
    table = default_decompositions()
    table[torch.ops.aten.scaled_dot_product_attention.default] = attention
    table.update(DECOMPOSED)
    if isinstance(module, ExportedProgram):
        return _decomposed(module, table, training)
    parameters = parameter_names(module.forward)
    given = Flat(by_name(parameters, example_inputs, example_kwargs))
    tensors = given.tensors
    without_values = any(parameter.is_meta for parameter in module.parameters())
    if without_values:
        tensors = [tensor.to("meta") for tensor in tensors]
    device = torch.device("meta") if without_values else nullcontext()
    with quiet(), device, _path_of_calls(module) as path:
        try:
            with called_with_tensors(module, given, training) as returned:
                with plain_attention() if training else nullcontext():
                    traced = torch.export.export(module, tuple(tensors), strict=False)
            program, name = traced.run_decompositions(table), type(module).__name__
            return Exported(name, program, traced, parameters, given.tree, *returned[-1])
        except InputError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise InputError(
                f"{_where(module, path)}: a branch depends on the values of a tensor{_line(error)};"
                " compute both sides and choose by torch.where, or decide before the call"
            ) from None
        except (Exception, SystemExit) as error:
            reason = (str(error).strip() or "no reason given").split("\n")[0]
            raise InputError(
                f"{_where(module, path)}: torch.export fails: {type(error).__name__}: {reason}"
            ) from None


def load_exported(path: str | Path, *, trust: bool = False) -> ExportedProgram:
    """What torch.export.save wrote.

    Args:
        path: of the file.
        trust: the file may execute code. torch unpickles parts of it, and evaluates the expressions
            of its shapes as Python.

    Raises:
        InputError: the file is not trusted, there is none, or it is another.
    """
    check_size(path, max_mb=_MAX_MB)
    if not trust:
        raise InputError(f"{path}: torch may execute code of a .pt2 file: trust=True loads it")
    with quiet():
        try:
            return torch.export.load(path)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{path}: no exported program: {reason}") from None


def _decomposed(program: ExportedProgram, table: Any, training: bool) -> Exported:
    """What torch.export made, in core ATen ops."""
    spec, name, traced = program.call_spec, "exported program", program
    assert spec.in_spec is not None and spec.out_spec is not None
    with quiet():
        try:
            program = program.run_decompositions(table)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"{name}: cannot be decomposed: {type(error).__name__}: {reason}"
            ) from None
    signature = program.graph_signature
    given = [one.arg for one in signature.input_specs if one.kind == InputKind.USER_INPUT]
    made = [one.arg for one in signature.output_specs if one.kind == OutputKind.USER_OUTPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    arguments, returned = (
        Flat(
            pytree.tree_unflatten(
                [
                    values[one.name]
                    if isinstance(one, TensorArgument)
                    else getattr(one, "value", 0)
                    for one in leaves
                ],
                tree,
            )
        )
        for leaves, tree in ((given, spec.in_spec), (made, spec.out_spec))
    )
    loss = loss_of(name, returned) if training else 0
    return Exported("exported", program, traced, (), arguments.tree, returned.tree, loss)


def place_of(node: fx.Node) -> str:
    """``op aten.topk in module 'encoder.0' (Router)``: which op, and where in the module."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", None)
    name = getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        name = str(node.target).removesuffix(".default")
    kind = str(kind).rsplit(".", 1)[-1] if isinstance(kind, str) else getattr(kind, "__name__", "")
    inside = f"in module {path!r} ({kind})" if path else f"in {kind or 'the module'}"
    return f"op {name} {inside}"


def path_of(node: fx.Node) -> str:
    """Dotted path of the submodule that an op belongs to; empty for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _where(module: nn.Module, path: list[tuple[str, str]]) -> str:
    own = type(module).__name__
    inner = [(name, kind) for name, kind in path if name]
    return f"{own}, module {inner[-1][0]!r} ({inner[-1][1]})" if inner else own


def _line(error: Exception) -> str:
    """The line of the user's code, if torch tells it."""
    found = re.search(r'File "([^"]+)", line (\d+), in \w+\n\s*(.+)', str(error))
    return f" ({found[1].rsplit('/', 1)[-1]}:{found[2]}: {found[3].strip()})" if found else ""


@contextmanager
def _path_of_calls(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """The submodules that are being called, outermost first; one that fails stays in the list."""
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
    """What torch says of its own insides is not for the user, whom one line tells what failed."""
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
