"""Predicted against measured seconds of torch modules on this host, after calibration.

Run: ``python -m benchmarks.stopwatch [--models mlp,gpt2] [--seconds S]``. Each module is placed on
two cores with costs that were measured on random placements of it, and its placement is executed in
turns with such placements, whose costs then predict it: the speed of a machine wanders. *error* is
the mean of the predicted over that of the measured seconds, less one. The modules here are large
enough that kernels count; of benchmarks/models.py come those that these do not cover, as small as
they are there. What is not installed is left out.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks.models import FACTORIES
from benchmarks.torch_modules import ConvNet, Transformer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import doppler
from doppler.baselines import Clustering
from doppler.cluster import host
from doppler.executor import Threads
from doppler.executor.calibration import (
    covering_placements,
    kernel_costs,
    kernel_samples,
    link_costs,
    link_probe,
    probing_placements,
    run_all,
)
from doppler.problem import Placement, Problem, build
from doppler.problem.costs import kernel_key
from doppler.report.rows import format_seconds
from doppler.simulator import WorkConserving
from doppler.trace import Trace

NUM_DEVICES = 2
_LEAST = 2  # executions of each placement
_DRAWS = 50  # simulations, whose mean is the prediction
Made = tuple[nn.Module, tuple[Any, ...]] | tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class UNet(nn.Module):
    """Down, up, and a connection past both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.last = nn.Conv2d(2 * channels, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = functional.relu(self.first(x))
        return self.last(torch.cat((high, self.up(functional.relu(self.down(high)))), 1))


class Residual(nn.Module):
    """Two convolutions with norms, added to what they read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.layers(x))


class Experts(nn.Module):
    """A mixture of experts, all of which compute everything."""

    def __init__(self, dim: int, hidden: int, num: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
            for _ in range(num)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return sum(shares[..., k : k + 1] * one(x) for k, one in enumerate(self.experts))


class Mixer(nn.Module):
    """Layers over positions and over channels in turn."""

    def __init__(self, positions: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.over_positions = nn.Linear(positions, positions)
        self.over_channels = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.gelu(self.over_positions(self.norm(x).mT)).mT
        return x + functional.gelu(self.over_channels(x))


def encoder(dim: int, heads: int, layers: int) -> nn.Module:
    """Torch's own encoder."""
    layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Patches(nn.Module):
    """A transformer on patches of images."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.encoder = encoder(dim, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        return self.encoder(torch.cat((self.token.expand(len(x), -1, -1), x), 1))[:, 0]


def _mlp() -> Made:
    layers = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    return layers, (torch.randn(512, 512),)


def _residual() -> Made:
    return nn.Sequential(*(Residual(32) for _ in range(3))), (torch.randn(4, 32, 32, 32),)


def _mixer() -> Made:
    return nn.Sequential(*(Mixer(128, 256) for _ in range(3))), (torch.randn(8, 128, 256),)


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": _mlp,
    "residual": _residual,
    "mixer": _mixer,
    "encoder": lambda: (encoder(256, 4, 2), (torch.randn(4, 128, 256),)),
    "llama_block": lambda: (Transformer(256, 4, 704, 256), (torch.randn(2, 256, 256),)),
    "conv_net": lambda: (ConvNet(32, 100), (torch.randn(8, 3, 64, 64),)),
    "unet": lambda: (UNet(16), (torch.randn(4, 3, 64, 64),)),
    "vit": lambda: (Patches(192), (torch.randn(4, 3, 160, 160),)),
    "experts": lambda: (Experts(256, 512, 4), (torch.randn(256, 256),)),
    "lstm": lambda: (nn.LSTM(256, 256, 2), (torch.randn(8, 32, 256),)),
    "gru": lambda: (nn.GRU(256, 256), (torch.randn(8, 32, 256),)),
}


class Logits(nn.Module):
    """A model of transformers, called with a tensor of tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False, return_dict=False)[0]


def _of_transformers(kind: str, **sizes: int) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{kind}Config")(vocab_size=1000, **sizes)
        config._attn_implementation = "eager"
        name = f"{kind}Model" if kind.startswith("Bert") else f"{kind}ForCausalLM"
        name = "GPT2LMHeadModel" if kind == "GPT2" else name
        return Logits(getattr(transformers, name)(config)), (torch.randint(1000, (2, 128)),)

    return make


_SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TRANSFORMERS = {
    "gpt2": _of_transformers("GPT2", n_embd=256, n_layer=2, n_head=4),
    "llama": _of_transformers("Llama", **_SIZES, **_HEADS),
    "mistral": _of_transformers("Mistral", **_SIZES, **_HEADS),
    "qwen2": _of_transformers("Qwen2", **_SIZES, **_HEADS),
    "gemma": _of_transformers("Gemma", **_SIZES, **_HEADS, head_dim=64),
    "bert": _of_transformers("Bert", **_SIZES, num_attention_heads=4),
}


def main() -> None:
    """Print a line for each model, and the mean absolute error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names, with commas between; all by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring, for each model")
    options = parser.parse_args()
    models = {**FACTORIES, **TRANSFORMERS, **MODELS}
    del models["llama_70b"]  # on the meta device
    names = options.models.split(",") if options.models else list(models)
    table = Table(title=f"{NUM_DEVICES} cores, calibrated, {options.seconds:g} s each")
    for column in ("module", "ops", "torch, 1 core", "measured", "predicted", "error"):
        table.add_column(column, justify="left" if column == "module" else "right")
    errors = []
    for name in names:
        torch.manual_seed(0)
        try:
            module, args, *more = models[name]()
        except ImportError as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        kwargs = more[0] if more else {}
        ops, measured_s, predicted_s = _compared(module.eval(), args, kwargs, options.seconds)
        errors.append(abs(predicted_s / measured_s - 1))
        row = (_torch_s(module, args, kwargs), measured_s, predicted_s)
        error = f"{predicted_s / measured_s - 1:+.1%}"
        table.add_row(name, str(ops), *map(format_seconds, row), error)
        print(f"{name}: {error}", flush=True)
    console = Console(width=120)
    console.print(table)
    near = sum(error <= 0.15 for error in errors)
    console.print(f"mean absolute error {np.mean(errors):.1%}, {near} of {len(errors)} within 15%")


def _compared(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
) -> tuple[int, float, float]:
    """Ops; measured and predicted seconds of the placement that is found with measured costs."""
    machine = host(num_devices=NUM_DEVICES)
    placed = doppler.place(module, args, machine, evaluations=64, example_kwargs=kwargs)
    problem, rng, threads = placed.problem, np.random.default_rng(0), Threads()
    probe = build(link_probe(), machine)
    links = link_costs(run_all(threads, probe, probing_placements(probe, 8), 0.0))
    covering = covering_placements(problem, 8, rng)
    known = _calibrated(problem, run_all(threads, problem, covering, 0.0), links)
    chosen = Placement.make(problem, *_found(known))
    traces: list[list[Trace]] = [[] for _ in (chosen, *covering)]
    with threads.open(problem) as session:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or len(traces[0]) < _LEAST * len(covering):
            for placement, own in zip((chosen, *covering), traces, strict=True):
                own.append(session.trace(placement))
    chosen_traces, *calibrating = traces
    measured_s = float(np.mean([trace.makespan_s for trace in chosen_traces]))
    every = [trace for own in calibrating for trace in own]
    known = _calibrated(problem, every, links)
    return problem.num_ops, measured_s, _predicted_s(known, chosen, every)


def _predicted_s(problem: Problem, placement: Placement, traces: list[Trace]) -> float:
    """The mean over simulations, in each of which every op takes one of its kernel's times.

    A machine that others use is slow now and then: what waits for the slower of two devices takes
    longer than means of ops say.
    """
    samples, rng = kernel_samples(traces), np.random.default_rng(0)
    keys = [kernel_key(kernel) for kernel in problem.graph.ops.kernels]
    simulated = []
    for _ in range(_DRAWS):
        op_s_VD = problem.arrays.op_seconds.copy()
        for v, d in enumerate(placement.device.tolist()):
            op_s_VD[v, d] = rng.choice(samples[keys[v], d])
        drawn = replace(problem, arrays=problem.arrays._replace(op_seconds=op_s_VD))
        with WorkConserving().open(drawn) as session:
            same = Placement.make(drawn, placement.device, placement.priority)
            simulated.append(session.trace(same).makespan_s)
    return float(np.mean(simulated))


def _calibrated(problem: Problem, traces: list, links: tuple[Any, Any]) -> Problem:
    table = kernel_costs(traces)
    latency_s, s_per_byte = links
    costs = replace(table, latency_s=latency_s, seconds_per_byte=s_per_byte)
    return build(problem.graph, problem.cluster, costs)


def _found(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Device and priority of a good placement, in the simulator."""
    with WorkConserving().open(problem) as session:
        best = Clustering(evaluations=256).place(session, np.random.default_rng(0)).placement
    return best.device, best.priority


def _torch_s(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """One call of the module itself, on one core."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        seconds = []
        for _ in range(5):
            begin_s = time.perf_counter()
            module(*args, **kwargs)
            seconds.append(time.perf_counter() - begin_s)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
