"""What modules cost: tensors that only repeat, or are only seen otherwise, take no time."""

import math
import time

import numpy as np
import pytest
import torch
from torch import nn

import doppler
from doppler.cluster import preset
from doppler.einsum import FewestElements, lower
from doppler.einsum.decomposition.auto import NodeSeconds
from doppler.einsum.decomposition.repeats import shorten
from doppler.einsum.decomposition.search import Search
from doppler.executor import run_graph
from doppler.extensions.modules import import_module
from doppler.extensions.modules.splitting import split
from doppler.graph.scalar import DTYPES
from doppler.problem import build
from doppler.simulator import WorkConserving
from doppler.support.phases import Phases


def on_meta(make, *shape: int):
    with torch.device("meta"):
        return make().eval(), (torch.empty(shape),)


def encoder(layers: int = 2, dim: int = 64, *, batch_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=batch_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Patches(nn.Module):
    """A transformer on the patches of images, as vision transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 64, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.encoder = encoder()

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        return self.encoder(torch.cat((self.token.expand(len(x), -1, -1), x), 1))[:, 0]


def unsplit(module, inputs):
    program = import_module(module, inputs).program
    return program, lower(program, {})


def test_an_encoder_costs_the_same_whichever_dimension_is_the_batch():
    costs = []
    for batch_first, shape in ((True, (8, 32, 64)), (False, (32, 8, 64))):
        module, inputs = on_meta(lambda bf=batch_first: encoder(batch_first=bf), *shape)
        _, graph = unsplit(module, inputs)
        cluster = preset(name="a100x8", num_devices=1)
        costs.append((graph.ops.read_bytes.sum(), build(graph, cluster).mean_op_seconds.sum()))
    np.testing.assert_allclose(costs[0], costs[1], rtol=0.05)


@pytest.mark.parametrize("make", [encoder, Patches])
def test_no_op_reads_or_writes_more_than_its_tensors_hold(make):
    """Counted by another road: from the tensors that the ops before it made, and the inputs."""
    shape = (4, 3, 32, 32) if make is Patches else (4, 16, 64)
    program, graph = unsplit(*on_meta(make, *shape))
    of_node = {node.name: node for node in program.nodes}
    largest = max(
        math.prod(node.shape) * DTYPES[node.dtype]
        for node in of_node.values()
        if node.kind in ("input", "matmul", "convolution")
    )
    # Scores of attention are as large as anything is: batch x heads x positions x positions.
    positions = 17 if make is Patches else 16
    largest = max(largest, 4 * 4 * positions * positions * 4)
    assert graph.ops.output_bytes.max() <= largest
    for v, reads in enumerate(graph.ops.reads):
        held = {(read.source, read.from_input) for read in reads}
        have = sum(
            graph.inputs.bytes[source] if from_input else graph.ops.output_bytes[source]
            for source, from_input in held
        )
        # One tensor may be two operands of a product.
        assert graph.ops.read_bytes[v] <= 2 * have


def test_a_sum_that_is_not_split_is_finished_where_it_is():
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 6), nn.Softmax(1)), torch.randn(4, 8)
    imported = import_module(module, (x,))
    graph = lower(imported.program, {})
    assert "formation" not in graph.ops.kinds
    results = imported.binding.outputs(run_graph(graph, imported.binding.inputs((x,))))
    torch.testing.assert_close(results, module(x))
    split_graph = lower(imported.program, {"0.addmm": (2, 1, 2)})
    assert list(split_graph.ops.kinds).count("formation") == 2
    results = imported.binding.outputs(run_graph(split_graph, imported.binding.inputs((x,))))
    torch.testing.assert_close(results, module(x))


def test_a_factor_that_both_sides_of_a_product_repeat_along_is_written_out():
    class Repeated(nn.Module):
        def forward(self, x, y):
            return x.expand(3, 2, 4) @ y.expand(3, 4, 2), x.expand(3, 2, 4) @ y

    x, y = torch.randn(2, 4), torch.randn(4, 2)
    imported = import_module(Repeated(), (x, y))
    results = imported.binding.outputs(
        run_graph(lower(imported.program, {}), imported.binding.inputs((x, y)))
    )
    for one, other in zip(results, Repeated()(x, y), strict=True):
        torch.testing.assert_close(one, other)


# --- Layers that are alike ----------------------------------------------------------------------


class Loss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x).square().mean()


@pytest.mark.parametrize("training", [False, True])
def test_layers_that_are_alike_are_split_as_one_that_stays(training):
    module, inputs = on_meta(lambda: Loss(encoder(8)), 4, 16, 64)
    program = import_module(module, inputs, training=training).program
    short = shorten(program)
    assert len(short.program.nodes) < 0.6 * len(program.nodes)
    assert len(short.program.nodes) + len(short.stand_ins) == len(program.nodes)
    splits = Search(short.program, NodeSeconds(short.program, preset(name="p100x4"), 4)).run()
    every = short.splits_of_all(splits)
    one, other = ("module.layers.1.linear1.addmm", "module.layers.4.linear1.addmm")
    assert every[one] == every[other]
    graph = lower(program, every)  # the whole program takes them
    assert graph.num_ops > 2 * lower(program, {}).num_ops
    # And a layer that is not like the others stays.
    odd = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(7)))
    odd[3] = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    program = import_module(odd, (torch.empty(4, 8),)).program
    names = {node.name for node in shorten(program).program.nodes}
    assert {node.name for node in program.nodes if node.name.startswith("3.")} <= names


def test_time_and_memory_of_a_long_recurrence_are_bounded():
    """Two layers of 30 steps: one state is read by many, and many are put together."""
    module, inputs = on_meta(lambda: nn.LSTM(16, 16, 2), 30, 4, 16)
    program = import_module(module, inputs).program
    begin_s = time.process_time()
    splits = FewestElements().splits(program, 8)
    searched_s = time.process_time() - begin_s
    begin_s = time.process_time()
    lower(program, splits)
    lowered_s = time.process_time() - begin_s
    # It took a hundred times as long as lowering; now a few times.
    assert searched_s < 20 * lowered_s


def test_a_limit_of_time_leaves_ways_to_split_untried_and_says_so():
    program = import_module(*on_meta(lambda: encoder(2), 4, 16, 64)).program
    judging = {"simulator": WorkConserving(), "must_fit": True}
    phases = Phases(1e-6)
    split(program, preset(name="p100x4"), "auto", phases, **judging)
    assert phases.cut_short == ["2 of 5 ways to split were tried"]
    phases = Phases(None)
    split(program, preset(name="p100x4", num_devices=2), "auto", phases, **judging)
    assert phases.cut_short == []


# --- What is told -------------------------------------------------------------------------------


def test_the_call_tells_its_phases_and_the_submodules():
    module, inputs = on_meta(encoder, 4, 16, 64)
    placed = doppler.place(module, inputs, preset(name="p100x4"), evaluations=64)
    assert list(placed.phases) == ["export", "compile", "split", "price", "search"]
    assert placed.seconds == pytest.approx(sum(placed.phases.values()))
    text = placed.explain()
    for path in ("layers.0.self_attn", "layers.1.linear2", "layers.0.norm1"):
        assert f"\n{path} " in text
    shares = [
        float(word.rstrip("%"))
        for line in text.splitlines()
        if line.startswith(("layers", "(itself)"))
        for word in line.split()
        if word.endswith("%")
    ]
    assert sum(shares) == pytest.approx(100, abs=1.0)


def test_relations_say_join_aggregation_and_repartition():
    from doppler.report.relations import relation_lines

    module, inputs = on_meta(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), 4, 8
    )
    program = import_module(module, inputs).program
    graph = lower(program, {"0.addmm": (2, 1, 2), "2.addmm": (1, 1, 4)})
    lines = [" ".join(line.split()) for line in relation_lines(graph)]
    assert lines[0] == "tensor join aggregation repartition"
    assert "*.addmm ac[2,2] x bc[1,2]: 4 ops add over c, 2 partials -" in lines
    assert "*.addmm.formation formation[2,1]: 2 ops add of 2 partials -" in lines
    assert "*.relu ab[1,1] x b[1]: 1 ops - *.addmm.formation [2,1] -> [1,1], 128 B" in lines
    assert (
        "*.addmm ac[1,4] x bc[1,4]: 4 ops add over c, 4 partials *.relu [1,1] -> [1,4], 128 B"
        in lines
    )
    assert relation_lines(lower(program, {})) == []
