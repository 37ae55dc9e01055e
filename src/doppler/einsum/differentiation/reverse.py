"""Differentiation: extends a program with a loss so that it also trains its weights.

Reverse mode, from the loss to the weights: the gradient of a node is the sum of what it receives
through its consumers. A gradient that only repeats along a dimension is not stored repeatedly: that
of the addends of a sum over j lacks j, and its readers broadcast it.

Source: automatic differentiation of relational computations, arXiv 2306.00088.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from doppler.einsum.differentiation.construction import (
    Broadcast,
    Construction,
    Value,
    as_scalar,
    every_dim,
)
from doppler.einsum.differentiation.rules import GradientRules, depends
from doppler.einsum.program import Formation, Input, Node, Program
from doppler.graph.scalar import Element, Number
from doppler.graph.scalar_algebra import add, mul, sub
from doppler.support.errors import InputError

# Dtypes of real numbers, which have gradients.
_REAL = ("f16", "bf16", "f32", "f64")


def training_program(program: Program, *, learning_rate: float) -> Program:
    """Extend a program to one step of gradient descent: its gradients and the new weights.

    The new value of a weight W is the node ``W.new``. The gradient of a node X is ``d_X``, and the
    part that comes through one of several consumers Y is ``d_X.Y``. Ties of a maximum or minimum
    share its gradient equally. The gradient of an aggregated product is undefined where a factor is
    0.

    Args:
        program: with a loss. Its nodes keep their numbers.
        learning_rate: factor of the gradients that are subtracted.

    Raises:
        InputError: there is no loss, the loss is not one real number, there is no weight, a weight
            is of integers, the loss does not depend on a weight, or a complex number has no
            gradient here.
    """
    if program.loss is None:
        raise InputError(f"program {program.name!r} has no loss to train on")
    loss = program.nodes[program.loss]
    if loss.shape or loss.dtype not in _REAL:
        raise InputError(
            f"program {program.name!r}: the loss {_stem(program.nodes, program.loss)!r} is not one "
            f"real number"
        )
    weights = [
        number
        for number, node in enumerate(program.nodes)
        if isinstance(node, Input) and node.is_weight
    ]
    if not weights:
        raise InputError(f"program {program.name!r} has no weights to train")
    for weight in weights:
        node = program.nodes[weight]
        if node.dtype not in (*_REAL, "c64"):
            raise InputError(
                f"program {program.name!r}: the weight {node.name!r} is {node.dtype}, which cannot "
                "be trained: make it an input, or a weight of f16, bf16, f32, f64 or c64"
            )
    construction = Construction(program)
    gradients = _differentiate(construction, program.loss)
    for weight in weights:
        if weight not in gradients:
            raise InputError(
                f"program {program.name!r}: the loss does not depend on the weight "
                f"{program.nodes[weight].name!r}"
            )
        _update(construction, weight, gradients[weight], learning_rate)
    return replace(program, nodes=tuple(construction.nodes), given_splits=construction.splits)


def _differentiate(construction: Construction, loss: int) -> Mapping[int, Value]:
    """Return the gradient of every node between the weights and the loss, in its tensor's space."""
    nodes, consumers = construction.program.nodes, construction.consumers
    trained_operands = _trained_operands(nodes)
    rules = GradientRules(construction)
    rules.gradients[loss] = Number(1.0)
    for number in reversed(range(loss)):
        uses = [
            (consumer, k)
            for consumer in consumers[number]
            if consumer in rules.gradients
            for k in trained_operands[consumer]
            if nodes[consumer].operands[k] == number
        ]
        name = f"d_{_stem(nodes, number)}"
        addends = [
            addend
            for consumer, k in uses
            for addend in rules.received(
                consumer, k, f"{name}.{_stem(nodes, consumer)}" if len(uses) > 1 else name
            )
        ]
        if addends:
            rules.gradients[number] = _total(construction, number, name, addends)
    return rules.gradients


def _trained_operands(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the operands of each node that change with a weight, and change the node's tensor."""
    trained: list[bool] = []
    result = []
    for node in nodes:
        operands = [
            k for k, operand in enumerate(node.operands) if trained[operand] and depends(node, k)
        ]
        trained.append(bool(operands) or (isinstance(node, Input) and node.is_weight))
        result.append(operands)
    return result


def _stem(nodes: Sequence[Node], number: int) -> str:
    """Return the name of the op that a node finishes, or the node's own."""
    node = nodes[number]
    return nodes[node.operands[0]].name if isinstance(node, Formation) else node.name


def _total(construction: Construction, number: int, name: str, addends: Sequence[Value]) -> Value:
    """Add the gradients of one node in a balanced tree: ``NAME.sum0, ...``, and ``NAME``."""
    node = construction.program.nodes[number]
    num_sums = 0
    while len(addends) > 1:
        sums = []
        for pair in zip(addends[::2], addends[1::2], strict=False):
            views: list[Broadcast] = []
            one, other = (as_scalar(addend, views) for addend in pair)
            sums.append(
                construction.sum_out(
                    name if len(addends) == 2 else f"{name}.sum{num_sums}",
                    construction.space_of_tensor(number),
                    add(one, other),
                    views,
                    onto=every_dim(node),
                    dtype=node.dtype,
                )
            )
            num_sums += 1
        addends = [*sums, *addends[2 * len(sums) :]]
    return addends[0]


def _update(construction: Construction, weight: int, gradient: Value, learning_rate: float) -> None:
    node = construction.program.nodes[weight]
    views = [Broadcast(weight, every_dim(node))]
    step = mul(Number(learning_rate), as_scalar(gradient, views))
    construction.append_einsum(
        f"{node.name}.new",
        construction.space_of_tensor(weight),
        sub(Element(0), step),
        views,
        kept=every_dim(node),
        aggregated=(),
        dtype=node.dtype,
    )
