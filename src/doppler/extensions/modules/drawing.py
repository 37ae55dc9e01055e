"""Computes tensors before a run: those that depend on no input, and random numbers.

Random numbers come from torch's own generator, in the order of the module's ops and of the elements
in memory. So with equal seeds they are those that the module would draw.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# Operators for which only shape and dtype of the argument matter.
OF_SHAPE = (
    *(aten.rand_like.default, aten.randn_like.default, aten.randint_like.default),
    *(aten.randint_like.low_dtype, aten.bernoulli.p, aten.uniform.default),
    *(aten.normal_functional.default, aten.exponential.default),
)


def is_random(node: fx.Node) -> bool:
    """Whether an op draws random numbers.

    Args:
        node: the op.
    """
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def mask_of_dropout(node: fx.Node) -> Callable[[], torch.Tensor]:
    """Return a function that draws which elements ``native_dropout`` keeps.

    Args:
        node: the call of ``native_dropout``.
    """
    data, probability, *_ = node.args
    assert isinstance(data, fx.Node) and isinstance(probability, float | int)
    value = data.meta["val"]
    shape, stride, dtype = tuple(value.shape), value.stride(), value.dtype

    def draw() -> torch.Tensor:
        kept = torch.empty_strided(shape, stride, dtype=dtype).bernoulli_(1 - probability)
        return kept.bool().contiguous()

    return draw


def draw_of(node: fx.Node) -> Callable[[], torch.Tensor] | None:
    """Return a function that draws the numbers of a random op.

    Args:
        node: the op.

    Returns:
        None if the numbers depend on values that the op reads.
    """
    reads = node.all_input_nodes
    if reads and not (node.target in OF_SHAPE and reads == [node.args[0]]):
        return None
    shapes = {one: one.meta["val"] for one in reads}

    def draw() -> torch.Tensor:
        like = {
            one: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            for one, value in shapes.items()
        }
        return _called(node, like.__getitem__)

    return draw


@torch.no_grad()
def evaluated(node: fx.Node) -> torch.Tensor:
    """Compute an op that depends only on constants, and each op before it once.

    Args:
        node: the op.
    """
    values: dict[fx.Node, Any] = {}
    waiting = [node]
    while waiting:
        one = waiting[-1]
        missing = [read for read in one.all_input_nodes if read not in values]
        waiting += missing
        if not missing:
            waiting.pop()
            if one not in values:  # several ops wait for it
                values[one] = _called(one, values.__getitem__)
    return values[node]


def _called(node: fx.Node, value_of: Callable[[fx.Node], torch.Tensor]) -> torch.Tensor:
    def value(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return value_of(argument)
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    arguments = pytree.tree_map(value, list(node.args), is_leaf=lambda x: isinstance(x, fx.Node))
    options = {key: value(one) for key, one in node.kwargs.items()}
    assert callable(node.target)
    return node.target(*arguments, **options)
