"""The Python API called with what it does not expect."""

import numpy as np
import torch
from fuzz.outcomes import FUZZ, outcome
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import doppler
from doppler.graph import DataflowGraph, Edges, Inputs, Ops, synthetic

GRAPH = synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)
MODULE = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1.5,
        float("nan"),
        float("inf"),
        2**70,
        "",
        "abc",
        "h100x8",
        "policy",
        "annealing",
        "cp_sat",
        b"x",
        [],
        {},
        (),
        object(),
        torch.zeros(2, 4),
        torch.zeros(0),
        np.zeros(3),
        GRAPH,
        MODULE,
        print,
        "none.yaml",
        "/dev/null",
    ]
)
# Compiled before a clock runs.
doppler.place(GRAPH, evaluations=64)
OPTIONS = (
    "cluster",
    "seconds",
    "evaluations",
    "method",
    "policy",
    "decomposition",
    "system",
    "training",
    "learning_rate",
    "seed",
)


@FUZZ
@example(GRAPH, None, {"seconds": None})
@example(GRAPH, None, {"seconds": 2**70})
@given(
    st.sampled_from([GRAPH, MODULE]) | ODD,
    st.sampled_from([None, torch.zeros(2, 4), (torch.zeros(2, 4),)]) | ODD,
    st.dictionaries(st.sampled_from(OPTIONS), ODD, max_size=2),
)
def test_place(model, inputs, options):
    budget = {} if "evaluations" in options or "seconds" in options else {"evaluations": 4}
    outcome("place", lambda: doppler.place(model, inputs, **budget, **options))


COLUMN = st.lists(
    st.sampled_from([0, 1, 2, -1, 0.5, 1e9, float("nan"), float("inf"), 1e308]),
    min_size=2,
    max_size=4,
)


@FUZZ
@given(
    COLUMN, COLUMN, st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=4), COLUMN
)
def test_graphs_made_by_hand(flops, output_bytes, pairs, edge_bytes):
    def make() -> DataflowGraph:
        src, dst = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in range(2))
        return DataflowGraph(
            name="mine",
            ops=Ops.make(flops=np.array(flops), output_bytes=np.array(output_bytes)),
            edges=Edges.make(
                src=src, dst=dst, bytes=np.resize(np.array(edge_bytes, dtype=float), len(pairs))
            ),
            inputs=Inputs.make(),
        )

    graph = outcome("graph by hand", make)
    if graph is not None:
        placed = outcome("place", lambda: doppler.place(graph, evaluations=2, cluster="p100x4"))
        assert placed is None or np.isfinite(placed.makespan_s)
