"""Reference execution: the ops of a graph one by one, whole tensors in and out."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from doppler.executor.kernels import compile_kernel
from doppler.executor.operands import assemble, cut
from doppler.executor.tensors import Outputs, check_executable, input_blocks
from doppler.graph import DataflowGraph, Read, topological_order


def run_graph(
    graph: DataflowGraph,
    inputs: Mapping[str, torch.Tensor],
    *,
    order: Sequence[int] | None = None,
) -> dict[str, torch.Tensor]:
    """Compute the results of a program with the kernels of its graph, one op at a time.

    Args:
        graph: with kernels, as lowering makes it.
        inputs: by the name of the program's input, all on one device, where the kernels run.
        order: all ops, producers before consumers; any such order by default.

    Returns:
        The results of the program, by name.

    Raises:
        InputError: the graph has no kernels, or an input is missing or has another shape or dtype.
    """
    check_executable(graph)
    blocks = input_blocks(graph, inputs)
    device = str(blocks[0].device) if blocks else "cpu"
    outputs = Outputs(graph, device=device)
    any_order = topological_order(graph.num_ops, graph.edges.src, graph.edges.dst)
    pairs = np.unique(np.stack([graph.edges.src, graph.edges.dst]), axis=1)
    num_waiting = np.bincount(pairs[0], minlength=graph.num_ops).tolist()
    results: dict[int, torch.Tensor] = {}

    def fetch(read: Read) -> torch.Tensor:
        return cut((blocks if read.from_input else results)[read.source], read.box)

    for v in any_order.tolist() if order is None else order:
        kernel, reads = graph.ops.kernels[v], graph.ops.reads[v]
        assert kernel is not None
        operands = assemble(kernel, reads, [fetch(read) for read in reads], device=device)
        result = compile_kernel(kernel, device=device)(operands)
        outputs.take(v, result)
        if num_waiting[v]:
            results[v] = result
        for source in {read.source for read in reads if not read.from_input}:
            num_waiting[source] -= 1
            if not num_waiting[source]:
                del results[source]
    return outputs.tensors
