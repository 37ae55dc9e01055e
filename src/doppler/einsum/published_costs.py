"""Costs of the published graph files, in place of true ones.

In these files an op costs the size of its node's whole, unsplit space, a transfer costs four times
as much as its producer, and parts of an op's output are not distinguished (PAPER and graph files of
DOPPLER, Yao et al., ICLR 2026). Use them only to compare with results on these files.
"""

import math
from dataclasses import replace

import numpy as np

from doppler.einsum.program import Einsum, Program
from doppler.graph import DataflowGraph, Edges
from doppler.graph.dataflow import GivenCosts
from doppler.graph.text_format import PUBLISHED_SECONDS_PER_COST


def with_published_costs(graph: DataflowGraph, program: Program) -> DataflowGraph:
    """Return a graph with the costs and kinds of the published files, and one edge per pair of ops.

    Args:
        graph: lowered from the program.
        program: whose spaces the costs are.
    """
    edges, ops = graph.edges, graph.ops
    space_V = np.array([float(math.prod(program.nodes[node].space)) for node in ops.node])
    pair_E = np.unique(edges.src * graph.num_ops + edges.dst, return_index=True)[1]
    pair_E.sort()
    src_E, dst_E = edges.src[pair_E], edges.dst[pair_E]
    return replace(
        graph,
        ops=replace(
            ops,
            kinds=tuple(
                "einsummable" if isinstance(program.nodes[node], Einsum) else kind
                for node, kind in zip(ops.node, ops.kinds, strict=True)
            ),
            kernels=(),
            reads=(),
            boxes=(),
        ),
        edges=Edges.make(src=src_E, dst=dst_E, bytes=ops.output_bytes[src_E]),
        given_costs=GivenCosts.make(
            op_seconds=space_V * PUBLISHED_SECONDS_PER_COST,
            transfer_seconds=4 * space_V[src_E] * PUBLISHED_SECONDS_PER_COST,
        ),
    )
