"""What is computed before a run: what depends on nothing that is given, and random numbers.

Numbers are drawn from torch's own generator, in the order of the module's ops and of the elements
in memory: what is seeded equally draws what the module would.
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
    """Whether an op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def mask_of_dropout(node: fx.Node) -> Callable[[], torch.Tensor]:
    """What draws which elements ``native_dropout`` keeps."""
    data, probability, *_ = node.args
    assert isinstance(data, fx.Node) and isinstance(probability, float | int)
    value = data.meta["val"]
    shape, stride, dtype = tuple(value.shape), value.stride(), value.dtype

    def draw() -> torch.Tensor:
        kept = torch.empty_strided(shape, stride, dtype=dtype).bernoulli_(1 - probability)
        return kept.bool().contiguous()

    return draw


def draw_of(node: fx.Node) -> Callable[[], torch.Tensor] | None:
    """What draws the numbers of a random op; None if they depend on values that it is given."""
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
    """The value of an op on constants."""
    return _called(node, evaluated)


def _called(node: fx.Node, value_of: Callable[[fx.Node], torch.Tensor]) -> torch.Tensor:
    def value(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return value_of(argument)
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    arguments = pytree.tree_map(value, list(node.args), is_leaf=lambda x: isinstance(x, fx.Node))
    options = {key: value(one) for key, one in node.kwargs.items()}
    assert callable(node.target)
    return node.target(*arguments, **options)
