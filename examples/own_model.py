"""Your own model: place a torch module on a machine, look at it, run it as it is placed.

python examples/own_model.py [seconds]
"""

import sys

import torch
from torch import nn

import doppler


class Experts(nn.Module):
    """Four feed-forward nets side by side, and their weighted sum: work that can be divided."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The experts' outputs, weighted by the gate."""
        weights = self.gate(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return x + (outputs * weights.unsqueeze(-2)).sum(-1)


def main(seconds: float) -> None:
    """Place it with a second of search, then run it on this machine's cores."""
    model, x = Experts(256, 1024), torch.randn(512, 256)
    placed = doppler.place(model, x, cluster="p100x4", seconds=seconds)
    print(placed)
    print(placed.explain())
    torch.testing.assert_close(doppler.execute(placed, x), model(x), rtol=1e-4, atol=1e-4)
    print("run as it is placed, it computes what torch does")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
