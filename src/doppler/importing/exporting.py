"""A torch module as a graph of core ATen ops, on tensors without elements."""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram, default_decompositions
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from doppler.errors import InputError

# Their own levels would win over that of torch.
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


def export(module: nn.Module, example_inputs: Sequence[Any]) -> ExportedProgram:
    """Export a module for inputs of the given shapes and dtypes; nothing is computed.

    Args:
        module: its parameters may be on the meta device.
        example_inputs: what it is called with.

    Raises:
        InputError: says where in the module torch.export fails, and why.
    """
    table = default_decompositions()
    table[torch.ops.aten.scaled_dot_product_attention.default] = _attention
    table[torch.ops.aten.native_group_norm.default] = _group_norm
    with _quiet(), _path_of_calls(module) as path:
        try:
            exported = torch.export.export(module, tuple(example_inputs), strict=False)
            return exported.run_decompositions(table)
        except GuardOnDataDependentSymNode as error:
            raise InputError(
                f"{_where(module, path)}: a branch depends on the values of a tensor{_line(error)};"
                " compute both sides and choose by torch.where, or decide before the call"
            ) from None
        except (Exception, SystemExit) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"{_where(module, path)}: torch.export fails: {type(error).__name__}: {reason}"
            ) from None


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
def _quiet() -> Iterator[None]:
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
