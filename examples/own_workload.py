"""Your own workload: a stencil on a grid, as a graph that Python makes.

    python examples/own_workload.py [side]

The function returns what each op costs and what it needs from others.
`examples/conf/workload/own_workload.yaml` makes it a choice of the command line.
"""

import sys
from pathlib import Path

import numpy as np

from doppler.cli import main as doppler
from doppler.graph import DataflowGraph, Edges, Inputs, Ops


def stencil(*, name: str, side: int, flops: float, num_bytes: float) -> DataflowGraph:
    """A grid of equal ops, each of which waits for the one above it and the one to its left.

    Args:
        name: of the graph.
        side: ops in a row, and rows.
        flops: floating-point operations of each op.
        num_bytes: that it hands to each of the two ops that wait for it.
    """
    op_RC = np.arange(side * side).reshape(side, side)
    src = np.concatenate([op_RC[:-1].ravel(), op_RC[:, :-1].ravel()])
    dst = np.concatenate([op_RC[1:].ravel(), op_RC[:, 1:].ravel()])
    num_ops = side * side
    return DataflowGraph(
        name=name,
        ops=Ops.make(flops=np.full(num_ops, flops), output_bytes=np.full(num_ops, num_bytes)),
        edges=Edges.make(src=src, dst=dst, bytes=np.full(len(src), num_bytes)),
        inputs=Inputs.make(),
    )


def main(side: int) -> int:
    """Compare list schedulers and annealing on it; nothing is trained."""
    conf = Path(__file__).resolve().parent / "conf"
    words = ["stage=evaluate", "baseline=[round_robin,etf,annealing]", f"workload.side={side}"]
    return doppler(["run", f"--config-dir={conf}", "workload=own_workload", *words])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 12))
