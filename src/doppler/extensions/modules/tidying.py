"""What is taken out of an exported graph before it becomes a program."""

from operator import getitem
from typing import Any

import torch
from torch import fx

from doppler.extensions.modules.nodes import argument, has_elements, place_of
from doppler.support.errors import InputError

aten = torch.ops.aten

# Checks of facts that are fixed in an exported graph.
_CHECKS = (aten._assert_tensor_metadata.default,)
# Operators that fill the shape of another tensor: with this number, or with their last argument.
_CONSTANTS_LIKE = {
    **{aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.full_like.default: None},
    **{aten.new_zeros.default: 0, aten.new_ones.default: 1, aten.new_full.default: None},
    **{aten.empty_like.default: 0, aten.new_empty.default: 0, aten.new_empty_strided.default: 0},
    **{aten.empty_strided.default: 0, aten._efficientzerotensor.default: 0},
}


def tidy(graph: fx.Graph) -> None:
    """Take checks, empty parts of concatenations and what nobody reads out of a graph, in place.

    Constants in the shape of a tensor become constants that read none, each gradient of a
    convolution an op of its own, and a random leaky ReLU that does not train a leaky ReLU.

    Raises:
        InputError: an op has an effect beside its results.
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
    """Take out the checks of linear algebra, and the tokens that keep them in order.

    The op whose result is checked checks it itself: a singular matrix is an error, as in torch.
    """
    tokens = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, effect, *arguments = node.args
        if effect is not aten._linalg_check_errors.default:
            raise InputError(f"{place_of(node)}: {effect} has an effect beside its results")
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
    """Without training the slope of ``rrelu`` is the mean of its bounds, and nothing is drawn."""
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
