"""Removes from an exported graph what a program does not need."""

from operator import getitem
from typing import Any

import torch
from torch import fx

from doppler.extensions.modules.nodes import argument, has_elements, place_of
from doppler.support.errors import InputError

aten = torch.ops.aten

# Checks of facts that are fixed in an exported graph.
_CHECKS = (aten._assert_tensor_metadata.default,)
# Operators that make a tensor filled with this number, or with their last argument (None).
_CONSTANTS_LIKE = {
    **{aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.full_like.default: None},
    **{aten.new_zeros.default: 0, aten.new_ones.default: 1, aten.new_full.default: None},
    **{aten.empty_like.default: 0, aten.new_empty.default: 0, aten.new_empty_strided.default: 0},
    **{aten.empty_strided.default: 0, aten._efficientzerotensor.default: 0},
}


def tidy(graph: fx.Graph) -> None:
    """Tidy a graph in place: remove checks, empty parts of concatenations, and unused ops.

    Constants in the shape of a tensor no longer read that tensor. Each gradient of a convolution
    becomes an op of its own. A random leaky ReLU becomes a leaky ReLU outside training.

    Args:
        graph: exported.

    Raises:
        InputError: an op has an effect besides its results.
    """
    _drop_effects(graph)
    for node in list(graph.nodes):
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif node.target in _CONSTANTS_LIKE:
            number = _CONSTANTS_LIKE[node.target]
            value = node.meta["val"]
            node.args = (list(value.shape), node.args[-1] if number is None else number)
            node.kwargs = {"dtype": value.dtype}
            node.target = aten.full.default
        elif node.target is aten.rrelu_with_noise_functional.default:
            _settle_rrelu(graph, node)
        elif node.target is aten.convolution_backward.default:
            _part_gradients(graph, node)
        elif node.target is aten.cat.default:
            parts = [one for one in node.args[0] if has_elements(one)]
            if parts and len(parts) < len(node.args[0]):
                node.args = (parts, *node.args[1:])
    graph.eliminate_dead_code()


def _drop_effects(graph: fx.Graph) -> None:
    """Remove the checks of linear algebra, and the tokens that keep them in order.

    Instead, the op whose result is checked checks it itself. So a singular matrix is an error, as
    in torch.
    """
    tokens = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, effect, *arguments = node.args
        if effect is not aten._linalg_check_errors.default:
            raise InputError(f"{place_of(node)}: {effect} has an effect besides its results")
        source: Any = arguments[0]
        source = source.args[0] if source.target is getitem else source
        names = {
            one.name for one in getattr(getattr(source.target, "_schema", None), "arguments", ())
        }
        if "check_errors" in names:
            source.kwargs = {**source.kwargs, "check_errors": True}
        for part in list(node.users):
            part.replace_all_uses_with(token)
            graph.erase_node(part)
        graph.erase_node(node)
        tokens.add(token)
    output = graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(None if one in tokens else one for one in results),)


def _settle_rrelu(graph: fx.Graph, node: fx.Node) -> None:
    """Replace ``rrelu`` outside training, where its slope is the mean of its bounds."""
    data, noise = node.args[:2]
    if argument(node, "training"):
        return
    for part in list(node.users):
        with graph.inserting_before(part):
            result: Any = noise
            if part.args[1] == 0:
                slope = (float(argument(node, "lower")) + float(argument(node, "upper"))) / 2
                result = graph.call_function(aten.leaky_relu.default, (data, slope))
                result.meta = dict(part.meta)
            part.replace_all_uses_with(result)


def _part_gradients(graph: fx.Graph, node: fx.Node) -> None:
    """Make each gradient an op: torch's operator with a mask; for the bias a sum."""
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
