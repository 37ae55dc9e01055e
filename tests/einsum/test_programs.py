"""The programs of workloads/: what they consist of, what they cost, and what they minimise."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from programs import random_splits

from doppler.einsum import Einsum, load_program, lower
from doppler.executor import random_inputs, run_graph
from doppler.support.errors import InputError

# Nodes, formations included, by kind.
KINDS = {
    "chainmm": {"input": 5, "matmul": 3, "formation": 3, "elementwise": 1},
    "ffnn": {"input": 3, "matmul": 2, "elementwise": 4, "reduction": 2, "formation": 4},
    "llama_block": {
        "input": 11,
        "matmul": 9,
        "formation": 13,
        "complexer": 4,
        "elementwise": 30,
        "reduction": 4,
    },
    "llama_layer": {
        "input": 13,
        "matmul": 10,
        "formation": 15,
        "complexer": 4,
        "elementwise": 38,
        "reduction": 5,
        "fill": 1,
        "select": 2,
        "squeezer": 1,
    },
    "cholesky": {
        "input": 14,
        "fill": 1,
        "cholesky": 4,
        "solve": 10,
        "matmul": 16,
        "elementwise": 21,
        "reduction": 4,
        "formation": 20,
    },
    "dataproc": {
        "input": 16,
        "matmul": 9,
        "elementwise": 22,
        "reduction": 11,
        "formation": 20,
    },
}
TRAINED = ("ffnn", "llama_block", "llama_layer")


def load(name: str, preset: str = "paper", **options):
    return load_program(f"workloads/{name}.einsum", preset=preset, **options)


@pytest.mark.parametrize("preset", ["paper", "small"])
@pytest.mark.parametrize("name", KINDS)
def test_nodes_of_the_programs(name, preset):
    program = load(name, preset)
    assert program.name == name
    assert program.loss is None
    assert Counter(node.kind for node in program.nodes) == KINDS[name]
    graph = lower(program, {})
    assert graph.num_ops == len(program.nodes) - KINDS[name]["input"]


def test_the_llama_programs_have_the_published_sizes():
    assert sum(KINDS["llama_block"].values()) == 71
    assert sum(KINDS["llama_layer"].values()) == 89
    sizes = Counter(
        math.prod(node.space) for node in load("llama_block").nodes if isinstance(node, Einsum)
    )
    # Elements of the spaces of ops: of the sums over the model, of rotations, activations,
    # feed-forward activations, attention scores, products of activations with weights.
    assert sizes == {
        4096: 4,
        4096 * 4096 // 2: 2,
        4096 * 4096: 18,
        4096 * 11008: 2,
        32 * 4096 * 4096: 8,
        4096**3: 6,
        4096 * 4096 * 11008: 3,
    }


def matmul_flops(name: str, p: dict[str, int]) -> int:
    """Floating-point operations of the products of matrices, by hand."""
    if name == "chainmm":
        return 3 * 2 * p["n"] ** 3
    if name == "ffnn":
        return 2 * p["rows"] * p["hidden"] * (p["inputs"] + p["classes"])
    if name == "cholesky":
        return 10 * 2 * p["n"] ** 3 + 6 * 2 * p["n"] ** 2 * p["samples"]
    if name == "dataproc":
        by_zone = 2 * p["slots"] + 3  # columns of what trips are added up to by zone
        per_trip = p["zones"] * (p["zones"] + by_zone) + p["readings"]
        by_zones = p["zones"] ** 2 + p["boroughs"] * p["slots"]
        return 2 * p["trips"] * per_trip + 2 * p["zones"] * by_zones
    width = p["heads"] * p["dim"]
    tokens = p["batch"] * p["seq"]
    attention = 4 * width**2 + 2 * p["seq"] * width
    words = 2 * p["batch"] * width * p["words"] if name == "llama_layer" else 0
    return 2 * tokens * (attention + 3 * width * p["ffn"]) + words


@pytest.mark.parametrize("preset", ["paper", "small"])
@pytest.mark.parametrize("name", KINDS)
def test_flops_are_those_of_the_arithmetic(name, preset):
    program = load(name, preset)
    for splits in ({}, program.given_splits):
        ops = lower(program, splits).ops
        is_matmul = np.array([kind == "matmul" for kind in ops.kinds])
        assert ops.flops[is_matmul].sum() == matmul_flops(name, dict(program.parameters))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in TRAINED])
def test_programs_that_learn_nothing_have_no_training_section(name):
    with pytest.raises(InputError, match=rf"program '{name}' has no section 'training'$"):
        load(name, training=True)


@pytest.mark.parametrize("preset", ["paper", "small"])
@pytest.mark.parametrize("name", TRAINED)
def test_training_sections_end_with_a_loss_in_single_precision(name, preset):
    forward, training = load(name, preset), load(name, preset, training=True)
    assert training.nodes[: len(forward.nodes)] == forward.nodes
    loss = training.nodes[training.loss]
    assert (loss.name, loss.shape, loss.dtype) == ("loss.formation", (), "f32")
    assert training.loss in training.outputs
    assert any(getattr(node, "is_weight", False) for node in forward.nodes)


def test_the_splits_given():
    assert lower(load("chainmm"), load("chainmm").given_splits).num_ops == 76
    for preset in ("paper", "small"):
        program = load("dataproc", preset)
        graph = lower(program, program.given_splits)
        assert (graph.num_ops, graph.num_edges) == (135, 233)
    # Irregular: blocks of one graph differ more than ten-thousand-fold in what they compute.
    flops = graph.ops.flops[graph.ops.flops > 0]
    assert flops.max() > 1e4 * flops.min()
    assert not load("cholesky").given_splits


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -(logits.log_softmax(-1) * target).sum() / len(target)


# Of a result of the program, and the target.
LOSSES = {
    "ffnn": ("Y", "T", lambda y, t: cross_entropy(y.log(), t)),
    "llama_block": ("out", "target", lambda y, t: (y - t).square().mean()),
    "llama_layer": ("choice", "target", cross_entropy),
}
SIZES = {"batch": 2, "seq": 11, "heads": 3, "dim": 6, "ffn": 13}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", TRAINED)
def test_losses_follow_from_the_results(name, seed):
    """What the programs themselves compute is tested where they are executed."""
    rng = np.random.default_rng(seed)
    params = {"rows": 50, "hidden": 70} if name == "ffnn" else SIZES
    forward, training = (load(name, "small", params=params, training=t) for t in (False, True))
    graphs = [lower(one, random_splits(one, rng, max_parts=3)) for one in (forward, training)]
    inputs = random_inputs(graphs[1], rng)
    result, target, loss_of = LOSSES[name]
    result = run_graph(graphs[0], inputs)[result].double()
    loss = run_graph(graphs[1], inputs)["loss"].double()
    # The results are rounded to half precision.
    torch.testing.assert_close(loss, loss_of(result, inputs[target].double()), rtol=0.01, atol=0.01)
