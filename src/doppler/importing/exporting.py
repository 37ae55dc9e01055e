"""A torch module as a graph of core ATen ops, on tensors without elements."""

import inspect
import io
import keyword
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from doppler.errors import InputError
from doppler.importing.trees import Flat, Tree, leaf_paths, rebuilt

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
    table[torch.ops.aten.scaled_dot_product_attention.default] = _attention
    table.update(DECOMPOSED)
    if isinstance(module, ExportedProgram):
        return _decomposed(module, table, training)
    parameters = _parameter_names(module.forward)
    given = Flat(by_name(parameters, example_inputs, example_kwargs))
    tensors = given.tensors
    if any(parameter.is_meta for parameter in module.parameters()):
        tensors = [tensor.to("meta") for tensor in tensors]
    with quiet(), _path_of_calls(module) as path:
        try:
            with _called_with_tensors(module, given, training) as returned:
                with _plain_attention() if training else nullcontext():
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


def load_exported(path: str | Path) -> ExportedProgram:
    """What torch.export.save wrote.

    Raises:
        InputError: there is no such file, or it is another.
    """
    with quiet():
        try:
            return torch.export.load(path)
        except FileNotFoundError:
            raise InputError(f"{path}: No such file") from None
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{path}: no exported program: {reason}") from None


@contextmanager
def _called_with_tensors(
    module: nn.Module, given: Flat, training: bool
) -> Iterator[list[tuple[Tree, int]]]:
    """Within, the module's forward takes tensors, and returns a tuple of tensors.

    Yields:
        A list to which every call adds the tree of what the forward returned, and which is its
        loss.
    """
    own, returned = module.forward, []

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = rebuilt(given.tree, tensors)
        result = Flat(own(*args, **kwargs))
        loss = _loss_of(type(module).__name__, result) if training else 0
        returned.append((result.tree, loss))
        if not training:
            return tuple(result.tensors)
        return tuple(one if k == loss else one.detach() for k, one in enumerate(result.tensors))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in _leaf_names(given.tree)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    had = vars(module).get("forward")
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield returned
    finally:
        if had is None:
            del module.forward
        else:
            module.forward = had


def _loss_of(name: str, result: Flat) -> int:
    """Which tensor is the loss: the one of this name, or else the first."""
    paths = [path[-1:] for path in leaf_paths(result.tree)]
    loss = paths.index(("loss",)) if ("loss",) in paths else 0
    if not result.tensors or result.tensors[loss].shape or not _is_real(result.tensors[loss]):
        raise InputError(
            f"{name}: training=true needs a module that returns its loss, one real number, alone, "
            "first, or as 'loss'"
        )
    return loss


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


def by_name(
    parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with its arguments by keyword, whose names are given, as far as that can be said."""
    named = dict(zip(parameters, args, strict=False))
    if len(args) > len(parameters) or named.keys() & kwargs.keys():
        return tuple(args), dict(kwargs)
    return (), {**named, **kwargs}


def _parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """By which names a forward takes what it is given by position; none if it takes any number."""
    try:
        known = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    if any(one.kind in kinds for one in known):
        return ()
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return tuple(one.name for one in known if one.kind == both)


def _leaf_names(tree: Tree) -> list[str]:
    """Of the tensors that a module is called with: parameters' names, and where in them."""
    names: list[str] = []
    for by_keyword, *path in leaf_paths(tree):
        name = re.sub(r"\W", "_", "_".join(map(str, path)))
        fits = by_keyword and name.isidentifier() and not keyword.iskeyword(name)
        name = name if fits else f"input_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names


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
    loss = _loss_of(name, returned) if training else 0
    return Exported("exported", program, traced, (), arguments.tree, returned.tree, loss)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention by its definition: torch's own takes care of rows that are masked altogether.

    Source: the documentation of torch.nn.functional.scaled_dot_product_attention.
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows, columns = scores.shape[-2:]
        mask = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(mask, scores, -torch.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = torch.softmax(scores, -1)
    if attn_mask is not None:
        nothing = (scores == -torch.inf).logical_not().any(-1, keepdim=True).logical_not()
        shares = torch.where(nothing, 0.0, shares)
    return torch.dropout(shares, dropout_p, train=True) @ value if dropout_p else shares @ value


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Within, torch's own attention is what its definition says, gradients included."""
    own = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = _attention  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = own


def _group_norm(
    data: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    num: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By layer_norm of the elements of each group; arguments as torch's own has them."""
    grouped = data.reshape(num, groups, channels // groups * size)
    normed, mean, scale = torch.native_layer_norm(grouped, grouped.shape[2:], None, None, eps)
    per_channel = (1, channels, *(1 for _ in data.shape[2:]))
    result = normed.reshape(data.shape)
    result = result if weight is None else result * weight.reshape(per_channel)
    result = result if bias is None else result + bias.reshape(per_channel)
    return result, mean.reshape(num, groups), scale.reshape(num, groups)


# What is decomposed by us, gradients or none.
DECOMPOSED: dict[Any, Callable[..., Any]] = {torch.ops.aten.native_group_norm.default: _group_norm}


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
