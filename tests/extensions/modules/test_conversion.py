"""Functions of torch as einsum programs, split at random, against torch itself."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import random_splits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import doppler
from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import TorchProgram, import_module
from doppler.graph.json_format import parse_graph, render_json


class Function(nn.Module):
    """A function of tensors as a module without parameters."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor):
        return self.function(*arguments)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def check(module: nn.Module, *arguments: Tensor, tolerance: float = 1e-5) -> TorchProgram:
    """The program computes what the module does, whole and split at random."""
    imported = import_module(module, arguments)
    with torch.no_grad():
        expected = module(*arguments)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        splits = random_splits(imported.program, rng, max_parts=2) if seed else {}
        # What a file of it says, whose operators are those that a file may name.
        graph = parse_graph(
            json.loads(render_json(lower(imported.program, splits))), Path("graph.json")
        )
        result = imported.binding.outputs(run_graph(graph, imported.binding.inputs(arguments)))
        leaves = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True)
        for one, other in leaves:
            torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=tolerance)
    return imported


def kinds(imported: TorchProgram) -> list[str]:
    return [node.kind for node in imported.program.nodes if node.kind != "input"]


def fused_attention(x: Tensor, weight: Tensor) -> Tensor:
    """Queries, keys and values by one product, cut in three."""
    batch, positions, dim = x.shape
    heads = (batch, positions, 4, dim // 4)
    q, k, v = (one.view(heads).transpose(1, 2) for one in (x @ weight).chunk(3, -1))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, positions, dim)


def grouped_attention(x: Tensor, weight: Tensor) -> Tensor:
    """Keys and values are shared by two heads each."""
    batch, positions, dim = x.shape
    q = x.view(batch, positions, 4, dim // 4).transpose(1, 2)
    kv = (x @ weight).view(batch, positions, 2, 2, dim // 4)
    k, v = (kv[:, :, i].transpose(1, 2).repeat_interleave(2, 1) for i in range(2))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def half_turn(x: Tensor) -> Tensor:
    heads = x.view(*x.shape[:-1], 4, -1)
    left, right = heads.chunk(2, -1)
    return torch.cat((-right, left), -1)


def pair_turn(x: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even - 2 * odd, odd + 2 * even), -1).flatten(-2)


def complex_turn(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angles = torch.outer(torch.arange(8.0), torch.arange(8.0))
    return torch.view_as_real(pairs * torch.polar(torch.ones(8, 8), angles)).flatten(-2)


SAMPLE = (draw(2, 8, 16),)
SHARDED = {
    "fused attention": (fused_attention, (*SAMPLE, draw(16, 48) / 4)),
    "grouped attention": (grouped_attention, (*SAMPLE, draw(16, 16) / 4)),
    "a mask of truths": (
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m > 0),
        (draw(2, 6, 4), draw(6, 6).index_fill(0, torch.tensor([2]), -1.0)),
    ),
    "half turn": (half_turn, SAMPLE),
    "turn of pairs": (pair_turn, SAMPLE),
    "complex turn": (complex_turn, SAMPLE),
    "embedding": (
        lambda i, t: functional.embedding(i, t),
        (torch.arange(6).view(2, 3), draw(7, 4)),
    ),
    "rows by number": (lambda t, i: t[:, i], (draw(4, 6), torch.tensor([[5, 0], [2, 2]]))),
    "gelu": (functional.gelu, SAMPLE),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), SAMPLE),
    "activations": (
        lambda x: [
            *(functional.elu(x), functional.leaky_relu(x), functional.relu6(x), functional.selu(x)),
            *(functional.silu(x), functional.hardswish(x), functional.mish(x), x.clamp(-0.5, 0.5)),
            *(x.sin(), x.cos(), x.erf(), x.square().rsqrt(), x**3, 2**x, x.sign(), 1 / x),
        ],
        (draw(4, 6),),
    ),
    "layer norm": (lambda x, w: functional.layer_norm(x, (8, 16), w, w), (*SAMPLE, draw(8, 16))),
    "group norm": (lambda x, w: functional.group_norm(x, 4, w, w), (draw(2, 8, 4, 4), draw(8))),
    "softmaxes": (lambda x: (x.softmax(1), x.log_softmax(0)), (draw(6, 8),)),
    "reductions": (
        lambda x: [
            *(x.sum(), x.sum(1), x.mean((0, 2), keepdim=True), x.amax(1), x.amin((0, 1))),
            *(x.var(1), x.std(0, correction=0), x.prod(2), x.max(1).values, (x > 1).any(2)),
        ],
        (draw(4, 6, 5),),
    ),
    "truths": (
        lambda x, y: torch.where((x < y) | ~(x >= 0) & (y != x), x, x.masked_fill(y > 1, 7.0)),
        (draw(5, 6), draw(5, 6, seed=1)),
    ),
    "whole numbers": (
        lambda i: (i * 2 + 1, (i == 3).float(), i // 2),
        (torch.arange(12).view(3, 4),),
    ),
    "views": (
        lambda x: [
            *(x[1:3], x[-1], x[:, 2::2], x.split([1, 3])[1], x.unbind(1)[0], x.T.reshape(-1)),
            *(torch.stack([x, -x]), torch.cat([x, x[:1]]), x[:, None].expand(-1, 3, -1), x.tril()),
        ],
        (draw(4, 4),),
    ),
    "products": (
        lambda x, v: [x @ x.T, (x.T @ x).sum(), x @ v, v[:, None] * v, v @ v, v[:, None] @ v[None]],
        (draw(6, 6), draw(6)),
    ),
    "constants": (lambda x: (x + torch.arange(6.0) * 2, torch.ones(3, 6) @ x), (draw(6),)),
    "images": (
        lambda x, w: [
            functional.conv2d(x, w, stride=2),
            functional.conv_transpose2d(functional.conv2d(x, w), w),
            *(functional.max_pool2d(x, 2), functional.avg_pool2d(x, 2)),
            functional.interpolate(x, scale_factor=2),
        ],
        (draw(2, 4, 8, 8), draw(6, 4, 3, 3)),
    ),
    "one dimension at a time": (
        lambda x: (x.cumsum(1), x.sort(0).values, x.topk(3).indices, x.topk(2, 0).values),
        (draw(5, 6),),
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_functions_that_can_be_split(name):
    function, arguments = SHARDED[name]
    assert check(Function(function), *arguments).whole == ()


def test_reshapes_between_heads_and_their_product_cost_no_op():
    """Elementwise: scaled and masked, exp, shares, and the result, which is copied into order."""
    function, arguments = SHARDED["fused attention"]
    found = kinds(check(Function(function), *arguments))
    assert found.count("matmul") == 3
    assert found.count("select") == 3, "queries, keys and values are taken apart"
    assert found.count("squeezer") == 3
    assert found.count("reduction") == 2, "the largest score, the sum of powers"
    assert found.count("formation") == 3 + 2
    assert found.count("elementwise") == 4
    assert len(found) == 3 + 3 + 3 + 2 + 5 + 4


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            lambda x: x.view(4, 6).sum(1) + x.view(3, 8)[0, :4],
            "op aten.view in Function: no common",
        ),
        (lambda x: x.flip(0, 1), "op aten.flip in Function: no rule says how to split it"),
    ],
)
def test_what_cannot_be_split_is_said_and_computed_whole(function, line):
    (found,) = check(Function(function), draw(6, 4)).whole
    assert found.startswith(line)


def test_results_that_are_inputs_or_results_twice_or_read_on():
    def function(x):
        y = x + 1
        return {"x": x, "y": [y, y], "more": (y * 2, None, 3)}

    imported = check(Function(function), draw(3, 4))
    assert len({one.name for one in imported.binding.results}) == 4


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("half", 5e-3), ("bfloat16", 4e-2), ("double", 1e-7)]
)
def test_other_dtypes(dtype, tolerance):
    module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU(), nn.Softmax(1))
    dtype = getattr(torch, dtype)
    check(module.to(dtype), draw(6, 8).to(dtype), tolerance=tolerance)


def test_parameters_and_buffers_are_inputs_by_their_names():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    imported = check(module, draw(2, 3, 6, 6))
    names = {node.name for node in imported.program.nodes if node.kind == "input"}
    assert names == {
        *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "input"),
    }


def test_later_values_of_parameters_count():
    module = nn.Linear(4, 4, bias=False)
    imported = import_module(module, (draw(2, 4),))
    with torch.no_grad():
        module.weight.zero_()
    result = run_graph(lower(imported.program, {}), imported.binding.inputs((draw(2, 4),)))
    assert imported.binding.outputs(result).abs().max() == 0


def test_arguments_and_results_in_dictionaries_numbers_and_shared_parameters():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.words.weight
            self.register_buffer("shift", draw(8), persistent=False)
            self.plain = draw(8, seed=1)

        def forward(self, given, factor):
            x = self.words(given["words"]) * factor + self.shift + self.plain
            return {"scores": self.head(x), "pair": (x, [given["words"]])}

    check(Tied(), {"words": torch.arange(6).reshape(2, 3)}, 3)


HALVES = {
    "overflow": lambda x: x * 300 / 300,
    "absorbed": lambda x: x + 4096 - 4096,
    "chain": lambda x: ((x * 0.3).exp() - 1).tanh() * x + x / 3,
    "activations": lambda x: functional.gelu(functional.silu(x) * 1.7).sigmoid() ** 2,
    # No square root: on some CPUs torch rounds that of f16 once, on others to f32 before.
    "compared": lambda x: torch.where(x * 1.001 > x, x + 1e-3, x - 1e-3).square(),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALVES)
def test_halves_are_rounded_behind_every_op_as_torch_does(name, dtype):
    module, x = Function(HALVES[name]), torch.linspace(-4, 300, 999).to(dtype)
    imported = import_module(module, (x,))
    graph, inputs = lower(imported.program, {}), imported.binding.inputs((x,))
    found = imported.binding.outputs(run_graph(graph, inputs))
    assert found.dtype == dtype
    torch.testing.assert_close(found, module(x), rtol=0, atol=0, equal_nan=True)


def test_a_bias_that_counts_nothing_is_ignored_even_where_it_is_none():
    class Biased(nn.Module):
        def forward(self, bias, x, y):
            return torch.addmm(bias, x, y, beta=0)

    inputs = torch.tensor([torch.inf, torch.nan, 1.0]), draw(2, 4), draw(4, 3)
    imported = import_module(Biased(), inputs)
    results = run_graph(lower(imported.program, {}), imported.binding.inputs(inputs))
    torch.testing.assert_close(imported.binding.outputs(results), inputs[1] @ inputs[2])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_splits_are_searched_where_parts_of_a_loss_read_each_other(training, weighted):
    class Smoothed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 10)
            weight = torch.rand(10) if weighted else None
            self.loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)

        def forward(self, x, y):
            return self.loss(self.linear(x), y)

    module, inputs = Smoothed(), (draw(32, 16), torch.arange(32) % 10)
    placed = doppler.place(module, inputs, "p100x4", evaluations=2, training=training)
    result = doppler.execute(placed, *inputs)
    loss = result[0] if training else result
    torch.testing.assert_close(loss, module(*inputs), rtol=1e-4, atol=1e-5)
