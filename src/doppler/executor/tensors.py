"""The whole tensors of a program, and the blocks of them that its graph uses."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from doppler.executor.elementwise import HALF, TORCH_DTYPES
from doppler.executor.operands import cut
from doppler.graph import DataflowGraph
from doppler.support.errors import InputError


def check_executable(graph: DataflowGraph) -> None:
    """Refuse a graph that says what its ops cost, but not what they compute.

    Args:
        graph: to check.

    Raises:
        InputError: names the graph.
    """
    ops = graph.ops
    complete = ops.kernels and ops.reads and ops.boxes and graph.tensors
    if not complete or None in ops.kernels or len(graph.inputs.boxes) < len(graph.inputs):
        raise InputError(
            f"graph {graph.name!r} cannot be executed: it does not say what its ops compute"
        )


def input_blocks(graph: DataflowGraph, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return for each input of a graph its block of the given tensor, as a view.

    Args:
        graph: an executable one.
        inputs: tensors by name.

    Raises:
        InputError: a tensor is missing, or has another shape or dtype than the graph says.
    """
    for number in sorted(set(graph.inputs.node.tolist())):
        tensor = graph.tensors[number]
        given = inputs.get(tensor.name)
        if given is None:
            raise InputError(f"graph {graph.name!r}: input {tensor.name!r} is not given")
        expected = (tensor.shape, TORCH_DTYPES[tensor.dtype])
        if (tuple(given.shape), given.dtype) != expected:
            raise InputError(
                f"graph {graph.name!r}: input {tensor.name!r} has shape {tuple(given.shape)} and "
                f"dtype {given.dtype} instead of {expected[0]} and {expected[1]}"
            )
    return [
        cut(inputs[graph.tensors[number].name], box)
        for number, box in zip(graph.inputs.node.tolist(), graph.inputs.boxes, strict=True)
    ]


class Outputs:
    """The results of a program, assembled block by block.

    Raises:
        InputError: names a result that the graph leaves in partial sums.
    """

    def __init__(self, graph: DataflowGraph, *, device: str = "cpu") -> None:
        self._blocks = {
            v: (graph.tensors[number].name, graph.ops.boxes[v])
            for v, number in enumerate(graph.ops.node.tolist())
            if graph.tensors[number].is_output
        }
        sizes: dict[str, int] = {}
        for name, box in self._blocks.values():
            sizes[name] = sizes.get(name, 0) + math.prod(stop - start for start, stop in box)
        self.tensors: dict[str, torch.Tensor] = {}
        for tensor in graph.tensors:
            if not tensor.is_output:
                continue
            if sizes.get(tensor.name) != math.prod(tensor.shape):
                raise InputError(
                    f"graph {graph.name!r}: the blocks of output {tensor.name!r} are partial "
                    "results: no formation adds them up"
                )
            self.tensors[tensor.name] = torch.empty(
                tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device=device
            )

    @property
    def ops(self) -> list[int]:
        """The ops whose results are blocks of them."""
        return list(self._blocks)

    def take(self, op: int, result: torch.Tensor) -> None:
        """Copy the result of an op into the output that it is a block of, if any."""
        if op in self._blocks:
            name, box = self._blocks[op]
            cut(self.tensors[name], box).copy_(result)


def random_inputs(graph: DataflowGraph, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Draw normal random values for the inputs of a graph, by name, on the CPU.

    The variance is 1, but the right operand of a matrix product is scaled so that the product has
    the scale of its left operand: activations keep their scale through layers of weights, also in
    f16. Integers, which may be indices, are 0 or 1.

    Args:
        graph: an executable one.
        rng: draws the values.
    """
    result = {}
    for number in sorted(set(graph.inputs.node.tolist())):
        tensor = graph.tensors[number]
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        dtype = TORCH_DTYPES[tensor.dtype]
        if not (dtype.is_floating_point or dtype.is_complex):
            result[tensor.name] = torch.randint(2, tensor.shape, generator=generator).to(dtype)
            continue
        wide = torch.float32 if dtype in HALF else dtype
        values = torch.randn(tensor.shape, generator=generator, dtype=wide)
        result[tensor.name] = (values / math.sqrt(_fan_in(graph, number))).to(dtype)
    return result


def _fan_in(graph: DataflowGraph, number: int) -> int:
    """Over how many elements the first op sums that reads an input tensor as its right operand."""
    block = int(np.flatnonzero(graph.inputs.node == number)[0])
    if not graph.inputs.consumers[block]:
        return 1
    v = graph.inputs.consumers[block][0]
    kernel, reads = graph.ops.kernels[v], graph.ops.reads[v]
    assert kernel is not None
    operand = next(read.operand for read in reads if read.from_input and read.source == block)
    indices, arrow, written = kernel.expression.partition("->")
    if operand != 1 or not arrow or ":" in written:
        return 1
    return math.prod(
        extent
        for letter, extent in zip(indices.split(",")[1], graph.tensors[number].shape, strict=True)
        if letter not in written
    )
