"""What the dual policy is measured without: features that look ahead, and either of its heads.

Shape suffixes: F features.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from doppler.errors import InputError

# What the published policies see. The rest looks ahead: where producers, siblings and, through
# diffusion, all near ops are; how devices compare with each other.
PUBLISHED_OP_FEATURES = ("compute", "b_level", "t_level", "incoming", "outgoing")
PUBLISHED_DEVICE_FEATURES = (
    *("load", "producer_compute", "producers_start", "producers_end", "start"),
)


def check_arguments(
    *, sizes: dict[str, int], rounds: int, encoder: str, sel: str, plc: str, look_ahead: bool
) -> None:
    """Refuse arguments of a policy that make no sense.

    Raises:
        InputError: names the argument.
    """
    for key, size in {**sizes, "rounds": rounds}.items():
        least = 0 if key == "rounds" else 1
        if size < least:
            raise InputError(f"policy.build.{key}: at least {least}, got {size}")
    for key, choice, choices in (
        ("encoder", encoder, ("gated", "none")),
        ("sel", sel, ("learned", "b_level")),
        ("plc", plc, ("learned", "earliest_start")),
        ("look_ahead", look_ahead, (True, False)),
    ):
        if choice not in choices:
            listed = ", ".join(map(str, choices))
            raise InputError(f"policy.build.{key}: {choice!r} is not one of {listed}")


class _Seen(nn.Module):
    """Weights [out, F] of a linear layer of which those of unseen features are 0."""

    def __init__(self, seen_F: list[bool]) -> None:
        super().__init__()
        self.seen_F: Tensor
        self.register_buffer("seen_F", torch.tensor(seen_F, dtype=torch.float32), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.seen_F


def blind(layer: nn.Linear, features: tuple[str, ...], seen: tuple[str, ...]) -> None:
    """Let a layer see only some of its features."""
    parametrize.register_parametrization(layer, "weight", _Seen([f in seen for f in features]))


def make_even(out: nn.Linear) -> None:
    """Equal logits, for good: among what the heuristic would choose, each is as likely."""
    nn.init.zeros_(out.weight).requires_grad_(False)
