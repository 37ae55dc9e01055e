"""Imported modules on threads."""

import numpy as np
import torch
from executions import ordered_placement
from programs import random_splits
from torch import nn
from torch.nn import functional

from doppler.cluster import host
from doppler.einsum import lower
from doppler.executor import Threads
from doppler.extensions.modules import import_module
from doppler.problem import build
from doppler.trace import check


class Search(nn.Module):
    """Operators of torch's own, on whole numbers too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)

    def forward(self, index):
        return functional.gelu(self.norm(self.words(index))).topk(2, -1).values


def test_a_module_of_torch_is_executed():
    module, index = Search().eval(), torch.arange(10).reshape(2, 5)
    imported = import_module(module, (index,))
    lowered = lower(imported.program, random_splits(imported.program, np.random.default_rng(0)))
    of = build(lowered, host(num_devices=3))
    with Threads(verify=True).open(of, inputs=imported.binding.inputs((index,))) as session:
        results = session.results(ordered_placement(of, 0))
    with torch.no_grad():
        torch.testing.assert_close(imported.binding.outputs(results), module(index))
    with Threads(verify=True).open(of) as session:  # on whole numbers drawn at random
        check(session.trace(ordered_placement(of, 1)))
