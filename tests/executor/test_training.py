"""Training steps of the workloads, executed op by op, against torch.autograd on plain torch."""

import re

import numpy as np
import pytest
import torch
from plain_torch import Tensors, as_drawn, ffnn, llama_block, llama_layer, rotary_inputs
from problems import REPOSITORY
from programs import random_order, random_splits

from doppler.einsum import Input, Program, load_program, lower, parse_program, training_program
from doppler.executor import random_inputs, run_graph
from doppler.graph import DataflowGraph


def ffnn_loss(given: Tensors) -> torch.Tensor:
    return -(ffnn(given)["Y"].log() * given["T"]).sum() / len(given["T"])


def llama_block_loss(given: Tensors) -> torch.Tensor:
    return (llama_block(given)["out"] - given["target"]).square().mean()


def llama_layer_loss(given: Tensors) -> torch.Tensor:
    choice = llama_layer(given)["choice"]
    return -(choice.log_softmax(-1) * given["target"]).sum() / len(choice)


# What is minimised, what draws the inputs, and the name of the shares to be learned, if it is such.
MEANING = {
    "ffnn": (ffnn_loss, as_drawn, "T"),
    "llama_block": (llama_block_loss, rotary_inputs, None),
    "llama_layer": (llama_layer_loss, rotary_inputs, "target"),
}
# Of the whole tensor's norm. What f16 rounds when partial sums are stored decides, for one in some
# ten thousand elements, on which side of relu's kink it is: 1% of a gradient's norm.
TOLERANCE = {"f16": 0.02, "f32": 1e-5}


def load(name: str, precision: str, learning_rate: float) -> Program:
    """The training program, its half precision replaced by another one."""
    text = (REPOSITORY / "workloads" / f"{name}.einsum").read_text()
    text = re.sub(r"\bf16\b", precision, text)
    program = parse_program(text, preset="small", training=True)
    return training_program(program, learning_rate=learning_rate)


def draw_inputs(name: str, graph: DataflowGraph, rng: np.random.Generator) -> Tensors:
    _, make_inputs, shares = MEANING[name]
    inputs = make_inputs(random_inputs(graph, rng), rng)
    return {**inputs, shares: (2 * inputs[shares]).softmax(-1)} if shares else inputs


def weights_of(program: Program) -> list[str]:
    return [node.name for node in program.nodes if isinstance(node, Input) and node.is_weight]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MEANING)
def test_a_step_of_training_is_the_one_of_autograd(name, seed, precision):
    # The rate is so high that what is left of the old weights hides nothing of the gradients.
    learning_rate = 1024.0
    rng = np.random.default_rng(seed)
    program = load(name, precision, learning_rate)
    graph = lower(program, random_splits(program, rng, max_parts=3) if seed else {})
    inputs = draw_inputs(name, graph, rng)
    results = run_graph(graph, inputs, order=random_order(graph, rng))

    leaves = {key: _wide(tensor) for key, tensor in inputs.items()}
    weights = weights_of(program)
    for weight in weights:
        leaves[weight].requires_grad_()
    loss = MEANING[name][0](leaves)
    gradients = torch.autograd.grad(loss, [leaves[weight] for weight in weights])
    expected = {"loss": loss.detach()}
    for weight, gradient in zip(weights, gradients, strict=True):
        expected[f"{weight}.new"] = leaves[weight].detach() - learning_rate * gradient
    for key, value in expected.items():
        error = (results[key].double() - value).norm() / value.norm()
        assert error <= TOLERANCE[precision], key


@pytest.mark.parametrize(
    ("name", "learning_rate"), [("ffnn", 1.0), ("llama_block", 0.1), ("llama_layer", 0.03)]
)
def test_steps_of_training_lower_the_loss(name, learning_rate):
    rng = np.random.default_rng(0)
    program = load(name, "f16", learning_rate=learning_rate)
    graph = lower(program, {})
    inputs = dict(draw_inputs(name, graph, rng))
    losses = []
    for _ in range(5):
        results = run_graph(graph, inputs)
        losses.append(results["loss"].item())
        inputs |= {weight: results[f"{weight}.new"] for weight in weights_of(program)}
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.99 * losses[0]


@pytest.mark.parametrize("name", MEANING)
def test_products_of_matrices_in_a_step(name):
    """Each has one for either operand's gradient; but the inputs of ffnn's first need none."""
    flops = {}
    for is_training in (False, True):
        program = load_program(f"workloads/{name}.einsum", training=is_training)
        if is_training:
            program = training_program(program, learning_rate=0.1)
        ops = lower(program, {}).ops
        flops[is_training] = ops.flops[[kind == "matmul" for kind in ops.kinds]].sum()
    factor = 2.5 if name == "ffnn" else 3.0
    assert flops[True] == pytest.approx(factor * flops[False], rel=1e-3)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
