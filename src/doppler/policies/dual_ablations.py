"""What the dual policy is measured without: features that look ahead, and either of its heads.

Shape suffixes: F features.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# What the published policies see. The rest looks ahead: where producers, siblings and, through
# diffusion, all near ops are; how devices compare with each other.
PUBLISHED_OP_FEATURES = ("compute", "b_level", "t_level", "incoming", "outgoing")
PUBLISHED_DEVICE_FEATURES = (
    *("load", "producer_compute", "producers_start", "producers_end", "start"),
)


class _Seen(nn.Module):
    """Weights [out, F] of a linear layer, 0 for features that are not seen."""

    def __init__(self, seen_F: list[bool]) -> None:
        super().__init__()
        self.seen_F: Tensor
        self.register_buffer("seen_F", torch.tensor(seen_F, dtype=torch.float32), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.seen_F


def blind(layer: nn.Linear, features: tuple[str, ...], seen: tuple[str, ...]) -> None:
    """Let a layer see only some of its features."""
    parametrize.register_parametrization(layer, "weight", _Seen([f in seen for f in features]))


def make_even(weight: torch.Tensor) -> None:
    """No logit is changed by these weights, for good: what is left to choose from is as likely."""
    nn.init.zeros_(weight).requires_grad_(False)
