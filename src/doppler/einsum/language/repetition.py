"""``repeat``: repeats the statements above it as further layers."""

from dataclasses import replace
from itertools import count

from doppler.einsum.language.parser import RepeatStatement
from doppler.einsum.language.scope import Scope, listed
from doppler.einsum.program import Input, Node

# Largest number of nodes of a program; large models have tens of thousands.
_MAX_NODES = 200_000


def repeat_layers(scope: Scope, statement: RepeatStatement) -> None:
    """Append further layers to a scope: one input of each is a tensor of the layer before.

    Each layer has its own weights. What depends neither on these nor on the layer before is
    computed only once. The tensors of layer 2 are called ``NAME.2``; after the statement, a name
    without a number means the last layer's tensor.

    Args:
        scope: with the first layer; changed.
        statement: that repeats it.

    Raises:
        InputError: the names are not an input and a tensor of the same shape and dtype, or there
            would be too many nodes.
    """
    fault = scope.source.fault
    for name in (statement.into, statement.out):
        if name not in scope.numbers:
            raise fault(name, f"unknown tensor '{name}'; so far there are {listed(scope.numbers)}")
    into, out = scope.numbers[statement.into], scope.numbers[statement.out]
    taker, giver = scope.nodes[into], scope.nodes[out]
    if not isinstance(taker, Input) or taker.is_weight:
        raise fault(statement.into, f"'{statement.into}' is not an input, so no layer can take it")
    if (taker.shape, taker.dtype) != (giver.shape, giver.dtype):
        raise fault(
            statement.out,
            f"'{statement.out}' is {_spoken(giver)}, but '{statement.into}' is {_spoken(taker)}",
        )
    layer, times = list(enumerate(scope.nodes)), scope.constants.extent(statement.times)
    if times * len(layer) > _MAX_NODES:
        raise fault(
            statement.into,
            f"{times:,} times {len(layer)} nodes are more than {_MAX_NODES:,}",
        )
    read = {operand for node in scope.nodes for operand in node.operands}
    last: dict[int, int] = {}
    names = {node.name for node in scope.nodes}
    for copy in range(2, times + 1):
        own = {into: last.get(out, out)}  # nodes of this layer, by number in the first one
        for number, node in layer:
            is_weight = isinstance(node, Input) and node.is_weight and number in read
            if number == into or not (is_weight or any(one in own for one in node.operands)):
                continue
            own[number] = len(scope.nodes)
            operands = tuple(own.get(one, one) for one in node.operands)
            name = next(one for k in count(copy) if (one := f"{node.name}.{k}") not in names)
            names.add(name)
            scope.nodes.append(replace(node, name=name, operands=operands))
            if node.name in scope.splits:
                scope.splits[name] = scope.splits[node.name]
        last = own
    for name, number in scope.numbers.items():
        if number != into:
            scope.numbers[name] = last.get(number, number)


def _spoken(node: Node) -> str:
    return f"{node.dtype}[{', '.join(map(str, node.shape))}]"
