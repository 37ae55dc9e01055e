"""The modules of benchmarks/torch_modules.py: small ones computed, large ones counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.torch_modules import FACTORIES, ConvNet, Transformer, count_flops
from programs import random_splits
from torch import nn
from torch.nn import functional

from doppler.einsum import FewestElements, lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module
from doppler.graph.json_format import parse_graph, render_json

SMALL = {
    "mlp": (nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4)), (6, 8)),
    "conv_net": (ConvNet(4, 5).eval(), (3, 3, 16, 16)),
    "transformer": (Transformer(16, 4, 24, 6), (2, 6, 16)),
    "one sample": (Transformer(16, 4, 24, 6), (1, 6, 16)),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_modules_compute_what_they_should(name):
    module, shape = SMALL[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    imported = import_module(module, (x,))
    assert imported.whole == ()
    with torch.no_grad():
        expected = module(x)
    for seed in range(2):
        splits = random_splits(imported.program, np.random.default_rng(seed), max_parts=2)
        graph = parse_graph(
            json.loads(render_json(lower(imported.program, splits))), Path("graph.json")
        )
        results = run_graph(graph, imported.binding.inputs((x,)))
        torch.testing.assert_close(
            imported.binding.outputs(results), expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", FACTORIES)
def test_contractions_cost_what_torch_counts(name):
    with torch.device("meta"):
        module, inputs = FACTORIES[name]()
    imported = import_module(module, inputs)
    assert imported.whole == ()
    lowered = lower(imported.program, FewestElements().splits(imported.program, 8))
    graph = parse_graph(json.loads(render_json(lowered)), Path("graph.json"))
    of_contractions = np.isin(graph.ops.kinds, ["matmul", "convolution"])
    counted = count_flops(module, inputs)
    assert graph.ops.flops[of_contractions].sum() == pytest.approx(counted, rel=0.01)
    assert graph.ops.kinds.count("matmul") % 8 == 0


class WithLoss(nn.Module):
    def __init__(self, module: nn.Module, loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x, y):
        return self.loss(self.module(x), y)


@pytest.mark.parametrize("name", ["mse", "cross_entropy", "transformer"])
def test_a_step_of_training_is_that_of_autograd(name):
    torch.manual_seed(0)
    module, shape = SMALL["transformer" if name == "transformer" else "mlp"]
    x = torch.randn(shape)
    loss = functional.cross_entropy if name == "cross_entropy" else functional.mse_loss
    y = torch.tensor([0, 3, 1, 1, 2, 0]) if name == "cross_entropy" else torch.randn_like(module(x))
    trained = WithLoss(module, loss)
    imported = import_module(trained, (x, y), training=True, learning_rate=0.5)
    value = trained(x, y)
    parameters = dict(trained.named_parameters())
    gradients = torch.autograd.grad(value, list(parameters.values()))
    splits = random_splits(imported.program, np.random.default_rng(0), max_parts=2)
    results = run_graph(lower(imported.program, splits), imported.binding.inputs((x, y)))
    torch.testing.assert_close(imported.binding.outputs(results), value.detach())
    new = imported.binding.new_parameters(results)
    assert new.keys() == parameters.keys()
    for (key, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        step = parameter.detach() - new[key]
        torch.testing.assert_close(step, 0.5 * gradient, rtol=1e-3, atol=1e-6)
