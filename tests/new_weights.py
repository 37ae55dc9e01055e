"""Policies whose new weights are a list scheduler, given random weights for tests."""

import torch

from doppler.policies import DualPolicy


def unlike_new(policy: DualPolicy, spread: float) -> DualPolicy:
    """The policy with normal weights of this spread where new ones are 0, but for groups."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if weight.requires_grad and "group" not in name and (weight == 0).all():
                torch.nn.init.normal_(weight, std=spread)
    return policy
