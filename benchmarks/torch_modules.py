"""Torch modules, exported, sharded and placed: speed-up over one device, bound, and controls.

Run: ``python benchmarks/torch_modules.py [--seconds 1] [--seeds 3]``. Simulated,
work-conserving; nothing is computed, and parameters are on the meta device. *TFLOP* are those of
contractions and convolutions, beside what torch.utils.flop_counter counts for the module. Then
every method places the blocks that the default method chose, in equal seconds each: makespans over
those of `cluster_then_anneal`, geometric means over seeds.

The functions below return a module and its example inputs:
``python src/run.py workload=torch workload.module=benchmarks.torch_modules:transformer``.
"""

import argparse
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import doppler
from doppler.problem import Problem
from doppler.report.rows import format_seconds, gap_over

CLUSTERS = ("p100x4", "v100x8", "h100x8", "mixed")
CONTROL = "cluster_then_anneal"
METHODS = ("auto", "policy", "estimates_then_anneal", "portfolio", "annealing")
Made = tuple[nn.Module, tuple[Tensor, ...]]


class ConvNet(nn.Module):
    """Two convolutions, a norm, poolings and a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.head = nn.Linear(2 * channels * 4 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.adaptive_avg_pool2d(functional.gelu(self.second(x)), 4)
        return functional.log_softmax(self.head(x.flatten(1)), -1)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in f32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return scaled.type_as(x) * self.weight


class Transformer(nn.Module):
    """A block of a transformer as LLaMA has it: rotary attention and a gated feed-forward part."""

    def __init__(self, dim: int, heads: int, hidden: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)
        width = dim // heads
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(positions), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of positions."""
        left, right = x.chunk(2, -1)
        turned = torch.cat((-right, left), -1)
        return (x * self.cos + turned * self.sin).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, dim = x.shape
        y = self.attention_norm(x)
        split = (batch, positions, self.heads, dim // self.heads)
        q, k, v = (one(y).view(split).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        q, k = self.rotate(q), self.rotate(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).reshape(batch, positions, dim))
        y = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def mlp() -> Made:
    """Two layers."""
    layers = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024))
    return layers, (torch.empty(8192, 1024),)


def conv_net() -> Made:
    """A small convolutional network on images of 64 x 64."""
    return ConvNet(64, 1000).eval(), (torch.empty(256, 3, 64, 64),)


def transformer() -> Made:
    """A block of ordinary size, batch 8."""
    return Transformer(1024, 16, 2816, 1024), (torch.empty(8, 1024, 1024),)


def llama_7b_block() -> Made:
    """A block of the shape of LLaMA-7B's, in half precision, 4096 positions."""
    block = Transformer(4096, 32, 11008, 4096).half()
    return block, (torch.empty(1, 4096, 4096, dtype=torch.half),)


FACTORIES = {
    "mlp": mlp,
    "conv_net": conv_net,
    "transformer": transformer,
    "llama_7b_block": llama_7b_block,
}


def main() -> None:
    """Print both tables as their rows are done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, nargs="*", default=[1.0], help="of a search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS)
    options = parser.parse_args()
    seeds = range(options.seeds)
    modules: list[str] = []
    compared: list[str] = []
    for (name, factory), cluster in itertools.product(FACTORIES.items(), options.clusters):
        with torch.device("meta"):
            module, inputs = factory()
        placed = doppler.place(module, inputs, cluster, max(options.seconds))
        modules.append(_row(name, cluster, *_described(placed, count_flops(module, inputs))))
        print(modules[-1], flush=True)
        for seconds in options.seconds:
            ratios = over_control(placed.problem, seconds, seeds)
            compared.append(_row(name, cluster, f"{seconds:g}", *(f"{r:.3f}" for r in ratios)))
            print(compared[-1], flush=True)
    columns = ("module", "cluster", "ops", "TFLOP", "torch's", "one device", "makespan")
    print("", _head(*columns, "speed-up", "bound", "gap"), *modules, sep="\n")
    print("", _head("module", "cluster", "seconds", *METHODS), *compared, sep="\n")


def over_control(problem: Problem, seconds: float, seeds: Sequence[int]) -> list[float]:
    """Makespans of `METHODS` over the control's, geometric means over seeds, on these blocks."""
    logarithms = {
        method: [
            np.log(
                doppler.place(
                    problem.graph,
                    cluster=problem.cluster,
                    seconds=seconds,
                    method=method,
                    seed=seed,
                ).makespan_s
            )
            for seed in seeds
        ]
        for method in (CONTROL, *METHODS)
    }
    return [
        float(np.exp(np.mean(logarithms[method]) - np.mean(logarithms[CONTROL])))
        for method in METHODS
    ]


def _described(placed: doppler.Placed, counted: int) -> tuple[str, ...]:
    """Cells of the first table."""
    return (
        f"{placed.problem.num_ops:,}",
        f"{contraction_flops(placed) / 1e12:.4f}",
        f"{counted / 1e12:.4f}",
        format_seconds(placed.single_device_s),
        format_seconds(placed.makespan_s),
        f"{placed.speed_up:.2f}",
        f"{format_seconds(placed.lower_bound_s)} ({placed.bound.name})",
        f"{gap_over(placed.lower_bound_s, placed.makespan_s):.1%}",
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(*columns: str) -> str:
    return _row(*columns) + "\n" + _row("---", "---", *("---:" for _ in columns[2:]))


def count_flops(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """By torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


def contraction_flops(placed: doppler.Placed) -> float:
    """Of the ops of a placed module."""
    ops = placed.problem.graph.ops
    return float(ops.flops[np.isin(ops.kinds, ["matmul", "convolution"])].sum())


if __name__ == "__main__":
    main()
