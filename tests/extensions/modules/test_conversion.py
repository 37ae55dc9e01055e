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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x @ x, (x @ x).detach()),
        lambda x: repeated_results(x.exp(), 1),
        lambda x: repeated_results(x @ x, 2),
        lambda x: repeated_results(x.exp(), 3),
    ],
)
def test_a_result_in_several_shapes_is_returned_in_each(function):
    check(Function(function), draw(4, 4))


def repeated_results(x: Tensor, num: int) -> list[Tensor]:
    return [x, *[x.flatten(), x.detach(), x.view(16, 1)][:num]]


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


F16_TENTH = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float16)
BIG = torch.tensor([[2**62 + 1, 2**53 + 1, -(2**63), 2**63 - 1], [5, 2**60 + 7, 1, 3]])
# Of the kind that a shorter formula would change: results beside torch's own, bit for bit.
EXACT = {
    "a constant twice": (lambda x: x * 1e30 * 1e30, torch.tensor([0.0, 1e-30, 1e-45])),
    "up and down": (lambda x: x * 10 * 0.1, torch.tensor([1e38, 3.0])),
    "small before large": (
        lambda x, y: (x * 1e-30) * y,
        torch.tensor([1e25]),
        torch.tensor([1e25]),
    ),
    "scaled squares": (lambda x: (x * 1e-25) * (x * 1e-25), torch.tensor([1e30, 3e25])),
    "quotient of a product": (lambda x, y: (x * 3) / y, torch.tensor([3e38]), torch.tensor([10.0])),
    "0 below": (lambda x, y: 1 / -(x - y), torch.ones(2), torch.ones(2)),
    "f16 constants in f32": (
        lambda x: x + torch.full((3,), 0.1, dtype=torch.float16),
        draw(3),
    ),
    "f32 constants in f64": (lambda x: x * torch.full((3,), 0.1), draw(3).double()),
    "a constant of bool": (lambda x: x * torch.full((3,), 2, dtype=torch.bool), draw(3)),
    "constants of integers": (
        lambda x: torch.cat((x, torch.full((2,), 2.7, dtype=torch.int32))),
        draw(3),
    ),
    "f16 chosen": (lambda x: torch.where(x > 0.1, x, 0.1).float(), F16_TENTH),
    "f16 filled": (lambda x: x.masked_fill(x < 0.2, 0.1).float(), F16_TENTH),
    "f16 compared": (lambda x: torch.stack((x < 0.1, x == 0.1, x >= 0.1, x != 0.2)), F16_TENTH),
    "f16 with bf16": (
        lambda x, y: torch.stack((x < y, x == y)),
        F16_TENTH,
        torch.tensor([0.1, 0.2, 0.05], dtype=torch.bfloat16),
    ),
    "a f16 bias beyond the range": (
        lambda b, x, y: torch.addmm(b, x, y) * 0.5,
        *(torch.full(shape, 100.0).half() for shape in ((3,), (2, 4), (4, 3))),
    ),
    "f16 products of one element": (
        lambda x, y: (x @ y) * 0.5,
        torch.full((2, 1), 300.0).half(),
        torch.full((1, 3), 300.0).half(),
    ),
    "f16 repeated": (
        lambda x: x.expand(100_000, 3).sum(0),
        torch.tensor([[0.0, 0.125, 0.25]]).half(),
    ),
    "f16 repeated beyond the range": (
        lambda x: x.expand(100, 3).sum(0) * 0.01,
        torch.full((1, 3), 1000.0).half(),
    ),
    "integers gathered": (lambda x, i: x.gather(1, i), BIG, torch.tensor([[3], [1]])),
    "integers repeated": (lambda x: x.expand(3, 2, 4).sum(0), BIG),
    "integers multiplied": (lambda x: (x % 1_000_003).expand(3, 2, 4).prod(0), BIG),
    "complex numbers multiplied": (
        lambda x: x.expand(2, 3).prod(0),
        torch.complex(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0])),
    ),
    "one index": (lambda x, i: x.index_select(0, i), draw(4, 3), torch.tensor(2)),
    "fewer degrees of freedom than taken": (lambda x: x.var(1, correction=5), draw(2, 3)),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", EXACT)
def test_results_are_those_of_torch_in_every_bit(name):
    function, *inputs = EXACT[name]
    imported = import_module(Function(function), tuple(inputs))
    results = run_graph(lower(imported.program, {}), imported.binding.inputs(inputs))
    expected = function(*inputs)
    torch.testing.assert_close(
        imported.binding.outputs(results), expected, rtol=0, atol=0, equal_nan=True
    )


def test_elu_keeps_its_digits_near_0():
    x = torch.tensor([-1e-7, -1e-5, -1e-3, -20.0, -torch.inf, torch.nan, 0.0, 2.0])
    imported = import_module(Function(functional.elu), (x,))
    results = run_graph(lower(imported.program, {}), imported.binding.inputs((x,)))
    torch.testing.assert_close(
        imported.binding.outputs(results), functional.elu(x), rtol=1e-6, atol=0, equal_nan=True
    )


def test_scores_of_f16_attention_may_exceed_its_range_before_they_are_scaled():
    x = torch.full((1, 2, 4, 128), 25.0).half() * torch.linspace(0.5, 1, 4).half()[:, None]
    check(Function(lambda q: functional.scaled_dot_product_attention(q, q, q)), x, tolerance=1e-2)


def repeatedly(times: int, step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        for _ in range(times):
            x = step(x)
        return x

    return function


def table(x: Tensor) -> Tensor:
    """A constant of many steps, each of which reads the one before twice."""
    constant = torch.ones(3)
    for _ in range(300):
        constant = constant * 0.5 + constant.flip(0) * 0.5
    return x * constant


@pytest.mark.parametrize(
    "function",
    [
        repeatedly(300, torch.sin),
        repeatedly(20, lambda x: functional.gelu(x, approximate="tanh")),
        repeatedly(20, functional.leaky_relu),
        table,
    ],
)
def test_long_chains_of_elementwise_ops(function):
    check(Function(function), draw(3))


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
