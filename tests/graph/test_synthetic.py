"""Graphs of known families."""

import networkx as nx
import numpy as np
import pytest
from digraphs import as_digraph

from doppler.cluster import preset
from doppler.graph import depth, synthetic
from doppler.graph.synthetic import FAMILIES
from doppler.problem import build
from doppler.support.errors import InputError


def make(family="layered", **arguments):
    return synthetic(
        **{"family": family, "num_ops": 60, "transfer_ratio": 1.0, "seed": 0, **arguments}
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_ops", [30, 80, 300])
def test_a_family_has_about_as_many_ops_as_asked_all_of_them_connected(family, num_ops):
    for seed in range(5):
        graph = make(family, num_ops=num_ops, seed=seed)
        assert num_ops / 3 <= graph.num_ops <= 3 * num_ops
        assert graph.num_edges >= graph.num_ops / 4
        if family != "layered":  # there an op may be read by none of the next layer
            assert not list(nx.isolates(as_digraph(graph)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_makes_the_same_graph_and_another_seed_another(family):
    first, again, other = make(family), make(family), make(family, seed=1)
    assert first.ops.flops.tolist() == again.ops.flops.tolist() != other.ops.flops.tolist()
    assert first.edges.src.tolist() == again.edges.src.tolist()
    assert first.edges.dst.tolist() == again.edges.dst.tolist()


@pytest.mark.parametrize("ratio", [0.0, 0.1, 4.0])
def test_an_average_transfer_takes_its_ratio_of_an_average_op(ratio):
    graph = make("stencil", transfer_ratio=ratio)
    problem = build(graph, preset(name="p100x4"))
    mean_op_s = problem.arrays.op_seconds[:, 0].mean()
    bytes_s = graph.ops.output_bytes.mean() / 12e9
    assert bytes_s / mean_op_s == pytest.approx(ratio, rel=0.1)


def structure(family, num_ops):
    graph = make(family, num_ops=num_ops)
    level_V = depth(graph.num_ops, graph.edges.src, graph.edges.dst)
    return graph, np.bincount(level_V).tolist()


def test_structures_that_are_known():
    graph, widths = structure("butterfly", 31)
    assert widths == [8, 8, 8, 8]
    assert graph.num_edges == 3 * 16
    graph, widths = structure("elimination", 30)
    assert graph.num_ops == 30  # 4 tiles a side: 16 + 9 + 4 + 1
    assert widths == [1, 6, 9, 1, 4, 4, 1, 2, 1, 1]
    graph, widths = structure("tree", 40)
    assert widths[0] == max(widths)
    assert 1 in widths[1:-1]
    graph, widths = structure("map_reduce", 60)
    assert widths[0] * widths[1] <= graph.num_edges


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "ladder"}, r"family: must be one of layered, random, .*, got 'ladder'"),
        ({"num_ops": 29}, r"num_ops: must be a whole number from 30 to 1,000,000, got 29"),
        (
            {"transfer_ratio": -1.0},
            r"transfer_ratio: must be a number from 0 to 1,000,000,000, got -1",
        ),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        make(**arguments)
