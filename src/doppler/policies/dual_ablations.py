"""Ablations of the dual policy: without looking ahead, and without either learned head.

Shape suffixes: F features.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# What the published policies see. All other features look ahead: where producers, siblings and, by
# diffusion, all near ops are; how devices compare with each other.
PUBLISHED_OP_FEATURES = ("compute", "b_level", "t_level", "incoming", "outgoing")
PUBLISHED_DEVICE_FEATURES = (
    *("load", "producer_compute", "producers_start", "producers_end", "start"),
)


class _Seen(nn.Module):
    """Weights [out, F] of a linear layer that are 0 for hidden features."""

    def __init__(self, seen_F: list[bool]) -> None:
        super().__init__()
        self.seen_F: Tensor
        self.register_buffer("seen_F", torch.tensor(seen_F, dtype=torch.float32), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.seen_F


def blind(layer: nn.Linear, features: tuple[str, ...], seen: tuple[str, ...]) -> None:
    """Let a layer see only some of its features.

    Args:
        layer: to change.
        features: names of all of its inputs.
        seen: names of those that it may see.
    """
    parametrize.register_parametrization(layer, "weight", _Seen([f in seen for f in features]))


def make_even(weight: torch.Tensor) -> None:
    """Fix weights at zero, so that the remaining choices are equally likely.

    Args:
        weight: to fix.
    """
    nn.init.zeros_(weight).requires_grad_(False)
