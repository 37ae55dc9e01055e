"""Programs on whole tensors, in plain torch: what training must compute, by torch.autograd."""

from collections.abc import Mapping
from functools import reduce

import torch

from doppler.einsum import (
    Complexer,
    Einsum,
    Fill,
    Formation,
    Input,
    Node,
    Program,
    Select,
    Squeezer,
    lower,
    training_program,
)
from doppler.executor import run_graph
from doppler.executor.elementwise import FUNCTIONS
from doppler.graph.scalar import Apply, Element, Number

TORCH = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "c64": torch.complex64}
LEARNING_RATE = 0.5

Tensors = Mapping[str, torch.Tensor]


def draw_inputs(program: Program, *, seed: int = 0, is_quantized: bool = False) -> Tensors:
    """Normal numbers, or multiples of 0.5 from -1 to 1, with many equal ones among them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for node in program.nodes:
        if isinstance(node, Input):
            wide = torch.complex128 if node.dtype == "c64" else torch.float64
            values = torch.randn(node.shape, generator=generator, dtype=wide)
            if is_quantized:
                values = (2 * values).round().clamp(-2, 2) / 2
            inputs[node.name] = values.to(TORCH[node.dtype])
    return inputs


def evaluate(program: Program, inputs: Tensors) -> dict[str, torch.Tensor]:
    """The tensors of all nodes."""
    tensors: dict[str, torch.Tensor] = {}
    for node in program.nodes:
        if isinstance(node, Input):
            tensors[node.name] = inputs[node.name]
            continue
        operands = [tensors[program.nodes[operand].name] for operand in node.operands]
        tensor = _compute(node, operands)
        assert tuple(tensor.shape) == node.shape
        tensors[node.name] = tensor.to(TORCH[node.dtype])
    return tensors


def _compute(node: Node, operands: list[torch.Tensor]) -> torch.Tensor:
    match node:
        case Einsum():
            return _einsum(node, operands)
        case Formation():
            return operands[0]
        case Complexer(to_complex=True):
            return torch.view_as_complex(operands[0].unflatten(-1, (-1, 2)).contiguous())
        case Complexer():
            return torch.view_as_real(operands[0]).flatten(-2)
        case Squeezer():
            return operands[0].reshape(node.shape)
        case Fill(above=None):
            return torch.full(node.shape, node.below)
        case Fill():
            above = torch.ones(node.shape).triu(1)
            return torch.where(above > 0, node.above, node.below)
        case Select():
            result = torch.zeros(node.shape, dtype=TORCH[node.dtype])
            for operand, box, start in node.parts:
                piece = operands[operand][tuple(slice(*span) for span in box)]
                into = zip(start, piece.shape, strict=True)
                result[tuple(slice(first, first + extent) for first, extent in into)] = piece
            return result
    raise AssertionError(node)


def _einsum(node: Einsum, operands: list[torch.Tensor]) -> torch.Tensor:
    aligned = []
    for operand, dims in zip(operands, node.operand_dims, strict=True):
        order = sorted(range(len(dims)), key=dims.__getitem__)
        shape = [node.extents[dim] if dim in dims else 1 for dim in range(len(node.extents))]
        aligned.append(operand.permute(order).contiguous().reshape(shape))
    joined = _scalar(node.join, aligned).expand(node.extents)
    dims = tuple(range(len(node.shape), len(node.extents)))
    match node.aggregation:
        case "add":
            return joined.sum(dims)
        case "mul":
            return reduce(lambda product, _: product.prod(-1), dims, joined)
        case "max":
            return joined.amax(dims)
        case "min":
            return joined.amin(dims)
    return joined


def _scalar(scalar, operands: list[torch.Tensor]) -> torch.Tensor:
    match scalar:
        case Element(operand):
            return operands[operand]
        case Number(value):
            return torch.tensor(value, dtype=torch.float64)
        case Apply(function, arguments):
            values = [_scalar(argument, operands) for argument in arguments]
            if function in TORCH:
                return values[0].to(TORCH[function])
            return FUNCTIONS[function](*values)
    raise AssertionError(scalar)


def author_name(program: Program, number: int) -> str:
    """What a result is called: by its op, not by the formation that finishes it."""
    return program.nodes[number].name.removesuffix(".formation")


def one_step(program: Program, inputs: Tensors) -> dict[str, torch.Tensor]:
    """The loss, and every weight after a step along the gradient that autograd finds."""
    names = [node.name for node in program.nodes if isinstance(node, Input) and node.is_weight]
    leaves = {name: inputs[name].clone().requires_grad_() for name in names}
    assert program.loss is not None
    loss_name = author_name(program, program.loss)
    loss = evaluate(program, {**inputs, **leaves})[loss_name]
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    result = {loss_name: loss.detach()}
    for name, gradient in zip(names, gradients, strict=True):
        result[f"{name}.new"] = inputs[name] - LEARNING_RATE * gradient
    return result


def check_training(
    program: Program, inputs: Tensors, *, splits=(), tolerance: float = 1e-12
) -> Program:
    """Hold the training program's loss and new weights against autograd.

    splits: of the training program, by which its graph is executed too.
    """
    trained = training_program(program, learning_rate=LEARNING_RATE)
    assert trained.nodes[: len(program.nodes)] == program.nodes
    assert len({node.name for node in trained.nodes}) == len(trained.nodes)
    expected = one_step(program, inputs)
    outputs = {author_name(trained, number) for number in trained.outputs}
    forward_outputs = {author_name(program, number) for number in program.outputs}
    assert outputs - forward_outputs == expected.keys() - forward_outputs
    assert expected.keys() <= outputs
    compare(evaluate(trained, inputs), expected, tolerance)
    # Graphs call results what authors call them, who write no formations.
    expected = {name.removesuffix(".formation"): tensor for name, tensor in expected.items()}
    for one in splits:
        compare(run_graph(lower(trained, one), inputs), expected, tolerance)
    return trained


def compare(result: Tensors, expected: Tensors, tolerance: float) -> None:
    """Equal but for a tolerance, relative to the largest element."""
    for name, tensor in expected.items():
        scale = max(1.0, tensor.abs().max().item())
        assert result[name].dtype == tensor.dtype
        torch.testing.assert_close(
            result[name],
            tensor,
            rtol=0.0,
            atol=tolerance * scale,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def random_splits(program: Program, rng) -> dict[str, tuple[int, ...]]:
    """At most 3 parts of every dimension; with these extents most are uneven."""
    return {
        node.name: tuple(
            rng.randint(1, min(3, extent // node.grain(dim)))
            for dim, extent in enumerate(node.space)
        )
        for node in program.nodes
        if not isinstance(node, Input | Formation)
    }
