"""What is taken out of an exported graph before it becomes a program."""

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# Checks of what is fixed in an exported graph.
_CHECKS = (aten._assert_tensor_metadata.default,)
# In the shape of another tensor: of which number, or of their last argument.
_CONSTANTS_LIKE = {
    **{aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.full_like.default: None},
    **{aten.new_zeros.default: 0, aten.new_ones.default: 1, aten.new_full.default: None},
    **{aten.empty_like.default: 0, aten.new_empty.default: 0, aten.new_empty_strided.default: 0},
    aten.empty_strided.default: 0,
}


def tidy(graph: fx.Graph) -> None:
    """Take checks, empty parts of concatenations and what nobody reads out of a graph, in place.

    Constants in the shape of a tensor become constants that read none, and each gradient of a
    convolution an op of its own.
    """
    for node in list(graph.nodes):
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif node.target in _CONSTANTS_LIKE:
            number = _CONSTANTS_LIKE[node.target]
            value = node.meta["val"]
            node.args = (list(value.shape), node.args[-1] if number is None else number)
            node.kwargs = {"dtype": value.dtype}
            node.target = aten.full.default
        elif node.target is aten.convolution_backward.default:
            _part_gradients(graph, node)
        elif node.target is aten.cat.default:
            parts = [one for one in node.args[0] if has_elements(one)]
            if parts and len(parts) < len(node.args[0]):
                node.args = (parts, *node.args[1:])
    graph.eliminate_dead_code()


def _part_gradients(graph: fx.Graph, node: fx.Node) -> None:
    """By input and weight by torch's operator, which computes those of its mask; by bias a sum."""
    gradient, *others, _ = node.args
    assert isinstance(gradient, fx.Node)
    for part in list(node.users):
        place: Any = part.args[1]
        with graph.inserting_before(part):
            if place == 2:
                dims = [dim for dim in range(gradient.meta["val"].dim()) if dim != 1]
                one = graph.call_function(aten.sum.dim_IntList, (gradient, dims))
                one.meta = dict(part.meta)
                part.replace_all_uses_with(one)
                continue
            mask = [k == place for k in range(3)]
            one = graph.call_function(aten.convolution_backward.default, (gradient, *others, mask))
            one.meta = dict(node.meta)
            values = node.meta["val"]
            one.meta["val"] = tuple(v if k == place else None for k, v in enumerate(values))
            part.args = (one, place)


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
