"""DataflowGraph to networkx and back."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from problems import graph_of, random_graph, with_given_costs
from programs import random_lowered

from doppler.extensions.formats import from_networkx, to_networkx
from doppler.graph import Alternative, DataflowGraph, KernelSpec
from doppler.graph.dataflow import Edges, GivenCosts, Inputs, Ops
from doppler.graph.reads import regions_of_reads
from doppler.support.errors import InputError


def edge_rows(graph: DataflowGraph) -> list[tuple]:
    """Edges as sorted rows: networkx keeps them in an order of its own."""
    edges, given = graph.edges, graph.given_costs
    seconds = given.transfer_seconds if given else np.zeros(len(edges))
    columns = (edges.src, edges.dst, edges.region, edges.bytes, seconds)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def assert_same(left: DataflowGraph, right: DataflowGraph) -> None:
    assert left.name == right.name
    for column in ("names", "kinds", "dtypes", "kernels", "reads", "boxes"):
        assert getattr(left.ops, column) == getattr(right.ops, column)
    for column in ("flops", "read_bytes", "output_bytes", "node", "block"):
        assert getattr(left.ops, column).tolist() == getattr(right.ops, column).tolist()
    assert edge_rows(left) == edge_rows(right)
    for column in ("names", "consumers", "boxes"):
        assert getattr(left.inputs, column) == getattr(right.inputs, column)
    assert left.tensors == right.tensors
    for column in ("node", "block", "bytes"):
        assert getattr(left.inputs, column).tolist() == getattr(right.inputs, column).tolist()
    assert (left.given_costs is None) == (right.given_costs is None)
    if left.given_costs and right.given_costs:
        assert left.given_costs.op_seconds.tolist() == right.given_costs.op_seconds.tolist()


def full_graph() -> DataflowGraph:
    kernel = KernelSpec(
        expression="ij,jk->ik",
        operand_shapes=((2, 3), (3, 4)),
        operand_dtypes=("f64", "f64"),
        output_shape=(2, 4),
        dtype="f64",
    )
    return DataflowGraph(
        name="full",
        ops=Ops.make(
            names=["load", "mm"],
            kinds=["copy", "einsum"],
            dtypes=["f32", "f64"],
            flops=[0.5, 48],
            read_bytes=[1, 2],
            output_bytes=[3, 4],
            node=[7, 8],
            block=[1, 0],
            kernels=[None, kernel],
        ),
        edges=Edges.make(src=[0, 0], dst=[1, 1], region=[5, 2], bytes=[10, 20]),
        inputs=Inputs.make(names=["w"], node=[3], block=[2], bytes=[9], consumers=[[1, 0]]),
    )


def test_nodes_are_op_ids_edge_keys_are_regions_and_columns_are_attributes():
    graph = to_networkx(full_graph())
    assert list(graph.nodes) == [0, 1]
    attributes = dict(graph.nodes[1])
    assert attributes.pop("kernel").expression == "ij,jk->ik"
    assert attributes == {
        "name": "mm",
        "kind": "einsum",
        "dtype": "f64",
        "flops": 48.0,
        "read_bytes": 2.0,
        "output_bytes": 4.0,
        "node": 8,
        "block": 0,
    }
    assert list(graph.edges(keys=True, data=True)) == [
        (0, 1, 5, {"bytes": 10.0}),
        (0, 1, 2, {"bytes": 20.0}),
    ]


def test_there_and_back_keeps_every_column():
    assert_same(from_networkx(to_networkx(full_graph())), full_graph())
    timed = with_given_costs(full_graph())
    assert to_networkx(timed).nodes[1]["given_seconds"] == timed.given_costs.op_seconds[1]
    assert_same(from_networkx(to_networkx(timed)), timed)


@pytest.mark.parametrize("seed", range(20))
def test_there_and_back_keeps_random_graphs(seed):
    graph = random_graph(np.random.default_rng(seed), 1 + 2 * seed)
    graph = with_given_costs(graph) if seed % 2 else graph
    assert_same(from_networkx(to_networkx(graph)), graph)


GIVEN = {
    "by device": {"op_seconds": [[1, np.inf], [1 / 3, 2], [0, 0]], "transfer_seconds": [1, 2, 3]},
    "by kinds of devices": {
        "op_seconds": None,
        "transfer_seconds": [[[0.1, np.nan], [0.2, 0.3]]] * 3,
        "kinds": ("gpu", "cpu"),
    },
    "of ops alone": {"op_seconds": [1, 2, 3], "transfer_seconds": None},
    "of edges alone": {"op_seconds": None, "transfer_seconds": [1, 2, 3]},
}


@pytest.mark.parametrize("counts_memory", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_there_and_back_keeps_given_costs_of_every_form(name, counts_memory):
    given = GivenCosts.make(**GIVEN[name], counts_memory=counts_memory)
    graph = graph_of([1, 2, 3], [(0, 1, 10, 2), (0, 1, 20, 5), (1, 2, 30)])
    again = from_networkx(to_networkx(replace(graph, given_costs=given))).given_costs
    for column in ("op_seconds", "transfer_seconds", "kinds", "counts_memory"):
        np.testing.assert_array_equal(getattr(again, column), getattr(given, column), column)


@pytest.mark.parametrize("seed", range(15))
def test_there_and_back_keeps_what_a_graph_computes(seed):
    graph = random_lowered(seed)
    again = from_networkx(to_networkx(graph))
    assert_same(again, graph)
    assert regions_of_reads(again) == regions_of_reads(graph)


def test_a_plain_digraph_with_any_node_names_gets_defaults():
    plain = nx.DiGraph()
    plain.add_node("b", flops=3)
    plain.add_edge("b", "a", bytes=7)
    graph = from_networkx(plain)
    assert graph.name == "networkx"
    assert graph.ops.names == ("b", "a")
    assert graph.ops.flops.tolist() == [3, 0]
    assert graph.ops.dtypes == ("f32", "f32")
    assert edge_rows(graph) == [(0, 1, 0, 7.0, 0.0)]
    assert graph.given_costs is None
    assert from_networkx(plain, name="mine").name == "mine"


def test_parallel_edges_of_a_multigraph_are_regions():
    parallel = nx.MultiDiGraph()
    parallel.add_edge("a", "b", bytes=1)
    parallel.add_edge("a", "b", bytes=2)
    assert from_networkx(parallel).regions.bytes.tolist() == [1, 2]


def test_edge_keys_that_are_no_integers_are_numbered():
    parallel = nx.MultiDiGraph()
    parallel.add_edge("a", "b", key="left", bytes=1)
    parallel.add_edge("a", "b", key="right", bytes=2)
    parallel.add_edge("a", "c", key="left", bytes=1)
    assert edge_rows(from_networkx(parallel)) == [
        (0, 1, 0, 1.0, 0.0),
        (0, 1, 1, 2.0, 0.0),
        (0, 2, 0, 1.0, 0.0),
    ]


def test_given_costs_are_taken_only_if_every_node_and_edge_has_them():
    timed = to_networkx(with_given_costs(graph_of([1, 2], [(0, 1, 3)])))
    del timed.edges[0, 1, 0]["given_seconds"]
    assert from_networkx(timed).given_costs is None


def test_an_undirected_graph_is_refused():
    with pytest.raises(InputError, match="networkx graph: must be directed"):
        from_networkx(nx.path_graph(3))


def test_a_cyclic_graph_is_refused_with_the_name_of_an_op_on_the_cycle():
    with pytest.raises(InputError, match=r"cycle through op [01] \('(x|y)'\)"):
        from_networkx(nx.DiGraph([("x", "y"), ("y", "x")]))


def test_alternatives_come_back():
    graph = graph_of([1.0, 1.0])
    slow = Alternative(backend="large", seconds=(2.0,), loss=0.0)
    fast = Alternative(backend="small", seconds=(1.0,), loss=0.3)
    known = replace(graph, ops=replace(graph.ops, alternatives=((slow, fast), ())))
    assert from_networkx(to_networkx(known)).ops.alternatives == known.ops.alternatives


def test_what_goes_to_several_readers_in_one_size_is_one_region():
    graph = nx.DiGraph()
    for reader, size in ((1, 10.0), (2, 20.0), (3, 10.0)):
        graph.add_edge(0, reader, bytes=size)
    found = from_networkx(graph)
    assert sorted(found.regions.bytes.tolist()) == [10.0, 20.0]
