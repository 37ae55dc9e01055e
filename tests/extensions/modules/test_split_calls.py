"""Calls of torch operators, split along every dimension that they may be split along."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module
from doppler.extensions.modules.calls import Call

aten = torch.ops.aten


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (4, 6, 8), generator=torch.Generator().manual_seed(len(shape)))


INDEX = torch.tensor([3, 0, 2, 1])
PLACES = torch.arange(4 * 6 * 8).view(4, 6, 8) * 5 % 6
CASES = {
    "cumsum": (lambda x: x.cumsum(1), data()),
    "cumprod": (lambda x: x.cumprod(1), data()),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), data()),
    "cummax": (lambda x: x.cummax(1).values, data()),
    "cummin": (lambda x: x.cummin(1).indices, data()),
    "sort": (lambda x: x.sort(1), data()),
    "stable sort": (lambda x: x.sort(dim=1, stable=True), data()),
    "topk": (lambda x: x.topk(2, -1), data()),
    "argmax": (lambda x: x.argmax(1, keepdim=True), data()),
    "flip": (lambda x: x.flip((1,)), data()),
    "roll": (lambda x: x.roll((1, 2), (0, 2)), data()),
    "slice_scatter": (lambda x, y: aten.slice_scatter(x, y, 1, 2, 5), data(), data(4, 3, 8)),
    "pad": (lambda x: functional.pad(x, (0, 0, 1, 2)), data()),
    "index_select": (lambda x, i: x.index_select(0, i), data(), INDEX),
    "index": (lambda x, i: x[:, i], data(), INDEX),
    "gather": (lambda x, i: x.gather(1, i), data(), PLACES),
    "gather of fewer rows": (lambda x, i: x.gather(1, i), data(), PLACES[:2, :4, :6] % 6),
    "convolution": (functional.conv2d, data(4, 6, 8, 8), data(2, 6, 3, 3), data(2)),
    "transposed": (functional.conv_transpose2d, data(4, 6, 8, 8), data(6, 2, 3, 3), data(2)),
    "embedding": (lambda i, x: functional.embedding(i, x), INDEX.view(2, 2), data(6, 8)),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), data(4, 6, 8, 8)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), data(4, 6, 8, 8)),
    "adaptive": (lambda x: functional.adaptive_avg_pool2d(x, 3), data(4, 6, 8, 8)),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), data(4, 6, 8, 8)),
    "bilinear": (
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        data(4, 6, 8, 8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_a_call_are_parts_of_its_result(name):
    function, *inputs = CASES[name]
    module = Calls(function)
    imported = import_module(module, tuple(inputs))
    calls = [node for node in imported.program.nodes if isinstance(node, Call)]
    assert calls
    tried = 0
    for call in calls:
        for dim in range(len(call.shape)):
            if call.shape[dim] < 2 or call.split_fault(dim, 2) is not None:
                continue
            tried += 1
            splits = {call.name: tuple(2 if d == dim else 1 for d in range(len(call.shape)))}
            graph = lower(imported.program, splits)
            results = imported.binding.outputs(run_graph(graph, imported.binding.inputs(inputs)))
            torch.testing.assert_close(results, module(*inputs))
    assert tried > 0
