"""Nodes of an exported graph: where in the module they are, what they are given and return."""

from typing import Any

import torch
from torch import fx


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


def argument(node: fx.Node, name: str) -> Any:
    """What an operator is given under a name of its signature, the default included."""
    if name in node.kwargs:
        return node.kwargs[name]
    for place, one in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if one.name == name:
            return node.args[place] if place < len(node.args) else one.default_value
    raise ValueError(f"{node.target} has no argument {name!r}")


def has_elements(node: fx.Node) -> bool:
    """Whether a tensor has any elements; a shape that is not known has."""
    value = node.meta.get("val")
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return not any(type(size) is int and size == 0 for size in shape)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The results of an op that are tensors."""
    value = node.meta.get("val")
    results = value if isinstance(value, tuple | list) else [value]
    return [one for one in results if isinstance(one, torch.Tensor)]
