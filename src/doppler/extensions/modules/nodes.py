"""Nodes of an exported graph: their places in the module, arguments and results."""

from typing import Any

import torch
from torch import fx


def place_of(node: fx.Node) -> str:
    """Describe an op for errors, such as ``op aten.topk in module 'encoder.0' (Router)``.

    Args:
        node: the op.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", None)
    name = getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        name = str(node.target).removesuffix(".default")
    kind = str(kind).rsplit(".", 1)[-1] if isinstance(kind, str) else getattr(kind, "__name__", "")
    inside = f"in module {path!r} ({kind})" if path else f"in {kind or 'the module'}"
    return f"op {name} {inside}"


def path_of(node: fx.Node) -> str:
    """Return the dotted path of the submodule that an op belongs to; empty for the module itself.

    Args:
        node: the op.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument of an operator, or its default.

    Args:
        node: the call of the operator.
        name: of the argument in the operator's signature.

    Raises:
        ValueError: the operator has no such argument.
    """
    if name in node.kwargs:
        return node.kwargs[name]
    for place, one in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if one.name == name:
            return node.args[place] if place < len(node.args) else one.default_value
    raise ValueError(f"{node.target} has no argument {name!r}")


def has_elements(node: fx.Node) -> bool:
    """Whether a tensor has any elements; a size that is not fixed counts as positive.

    Args:
        node: that computes the tensor.
    """
    value = node.meta.get("val")
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return not any(type(size) is int and size == 0 for size in shape)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """Return the results of an op that are tensors.

    Args:
        node: the op.
    """
    value = node.meta.get("val")
    results = value if isinstance(value, tuple | list) else [value]
    return [one for one in results if isinstance(one, torch.Tensor)]
