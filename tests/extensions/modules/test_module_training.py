"""A step of training of modules with ops that are no einsums, against autograd."""

import numpy as np
import pytest
import torch
from programs import random_splits
from test_conversion import draw
from torch import nn
from torch.nn import functional

from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module


class Words(nn.Module):
    """A small language model: embedding, attention, dropout, a tied head, its loss by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
        self.head, self.unused = nn.Linear(8, 12, bias=False), nn.Linear(3, 3)
        self.head.weight = self.words.weight

    def forward(self, ids, *, labels):
        x = self.words(ids)
        q, k, v = (
            one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.dropout(mixed.transpose(1, 2).flatten(-2), 0.2, self.training)
        logits = self.head(x)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"logits": logits, "loss": loss}


class Images(nn.Module):
    """Convolutions, norms in training, pooling, a part whose gradient is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.groups = nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4)
        self.up, self.head = nn.ConvTranspose2d(4, 2, 2), nn.Linear(2, 1)

    def forward(self, x):
        x = functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = self.up(self.groups(self.second(x)))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return (self.head(x) * x.detach().sigmoid().sum()).square().mean()


IDS = torch.arange(10).view(2, 5)
CASES = {
    "words": (Words, (IDS,), {"labels": (IDS * 3) % 12}),
    "images": (Images, (draw(3, 2, 12, 12),), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_autograd(name):
    make, args, kwargs = CASES[name]
    torch.manual_seed(0)
    module = make()
    imported = import_module(module, args, kwargs, training=True, learning_rate=0.5)
    binding = imported.binding
    torch.manual_seed(3)
    returned = module(*args, **kwargs)
    loss = returned["loss"] if name == "words" else returned
    parameters = dict(module.named_parameters(remove_duplicate=False))
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for seed in range(2):
        splits = random_splits(imported.program, np.random.default_rng(seed), max_parts=2)
        torch.manual_seed(3)
        graph = lower(imported.program, splits if seed else {})
        results = run_graph(graph, binding.inputs(args, kwargs))
        out = binding.outputs(results)
        torch.testing.assert_close(out["loss"] if name == "words" else out, loss.detach())
        new = binding.new_parameters(results)
        trained = {n for n, g in zip(parameters, gradients, strict=True) if g is not None}
        assert new.keys() == trained
        for (key, one), gradient in zip(parameters.items(), gradients, strict=True):
            if key in trained:
                step = one.detach() - new[key]
                torch.testing.assert_close(step, 0.5 * gradient, rtol=1e-3, atol=1e-5)


def test_gradients_of_convolutions_are_ops_of_their_own_that_can_be_split():
    imported = import_module(CASES["images"][0](), CASES["images"][1], training=True)
    calls = [node for node in imported.program.nodes if node.kind == "convolution_backward"]
    assert len(calls) == 5, "none by the input of the first"
    split = [any(d is not None for dims in node.operand_dims for d in dims) for node in calls]
    assert split.count(False) == 1, "by the weight of the one in groups"
    assert not any("norm" in line for line in imported.whole)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x, *, labels):
        with torch.no_grad():
            scale = self.second.weight.abs().amax()
        logits = self.second(self.norm(self.first(x)).relu() / scale)
        return {"logits": logits, "loss": functional.cross_entropy(logits, labels)}


def test_an_exported_program_is_trained_as_its_module():
    torch.manual_seed(0)
    module, x, labels = Small(), draw(5, 4), torch.tensor([0, 1, 1, 0, 1])
    exported = torch.export.export(module, (x,), {"labels": labels})
    found = []
    for one, args, kwargs in ((module, (x,), {"labels": labels}), (exported, (), {})):
        imported = import_module(one, args, kwargs, training=True, learning_rate=0.5)
        inputs = imported.binding.inputs((x,), {"labels": labels})
        results = run_graph(lower(imported.program, {}), inputs)
        found.append(imported.binding.new_parameters(results))
        assert imported.binding.effects.keys() == {
            *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        }
    torch.testing.assert_close(*found)
    loss = module(x, labels=labels)["loss"]
    for (key, one), gradient in zip(
        module.named_parameters(),
        torch.autograd.grad(loss, list(module.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(found[0][key], one - 0.5 * gradient, rtol=1e-4, atol=1e-5)


def test_the_outermost_loss_is_the_loss():
    class Aided(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return {"aux": {"loss": (0 * self.w).sum()}, "loss": (self.w * x).sum()}

    module, x = Aided(), torch.tensor([1.0, 2.0])
    imported = import_module(module, (x,), training=True, learning_rate=1.0)
    results = run_graph(lower(imported.program, {}), imported.binding.inputs((x,)))
    new = imported.binding.new_parameters(results)
    torch.testing.assert_close(new["w"], torch.tensor([0.0, -1.0]))
