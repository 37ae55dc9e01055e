"""DataflowGraph: its regions, and what it refuses."""

import dataclasses

import numpy as np
import pytest
from problems import graph_of

from doppler.graph import DataflowGraph, KernelSpec
from doppler.graph.dataflow import Edges, GivenCosts, Inputs, Ops
from doppler.support.errors import InputError


def replaced(graph: DataflowGraph, **columns) -> DataflowGraph:
    """The graph with other columns; ``ops_flops=...`` replaces column flops of table ops."""
    tables = {}
    for name, values in columns.items():
        table, column = name.split("_", 1)
        tables.setdefault(table, {})[column] = values
    return dataclasses.replace(
        graph,
        **{
            table: dataclasses.replace(getattr(graph, table), **changed)
            for table, changed in tables.items()
        },
    )


def diamond() -> DataflowGraph:
    return graph_of(
        [1, 2, 3, 4], [(0, 1, 8), (0, 2, 8), (1, 3, 4), (2, 3, 4)], inputs=[(16, [0, 1])]
    )


def test_regions_group_edges_by_source_and_label_whatever_the_order_of_edges():
    graph = graph_of(
        [1, 1, 1, 1],
        [(1, 3, 5, 0), (0, 3, 2, 7), (0, 2, 9, 1), (0, 1, 2, 7), (0, 3, 9, 1)],
    )
    regions = graph.regions
    # Region 0 is (op 0, label 1), region 1 is (op 0, label 7), region 2 is (op 1, label 0).
    assert regions.src.tolist() == [0, 0, 1]
    assert regions.bytes.tolist() == [9, 2, 5]
    assert regions.op_ptr.tolist() == [0, 2, 3, 3, 3]
    assert regions.consumer_ptr.tolist() == [0, 2, 4, 5]
    assert regions.consumers.tolist() == [2, 3, 1, 3, 3]
    assert regions.of_edge.tolist() == [2, 1, 0, 1, 0]
    assert len(regions) == 3


def test_a_graph_without_edges_has_no_regions():
    regions = graph_of([1, 1]).regions
    assert len(regions) == 0
    assert regions.op_ptr.tolist() == [0, 0, 0]
    assert regions.consumer_ptr.tolist() == [0]


def test_one_pair_of_ops_may_share_two_regions_of_different_size():
    graph = graph_of([1, 1], [(0, 1, 3, 0), (0, 1, 4, 1)])
    assert graph.regions.bytes.tolist() == [3, 4]


def test_counts_and_repr_say_how_large_the_graph_is():
    graph = diamond()
    assert (graph.num_ops, graph.num_edges) == (4, 4)
    assert repr(graph) == "DataflowGraph('test': 4 ops, 4 edges, 1 inputs)"


def test_columns_that_are_not_given_get_names_zero_bytes_and_no_nodes():
    ops = Ops.make(flops=[1, 2])
    assert ops.names == ("op0", "op1")
    assert ops.kinds == ("op", "op")
    assert ops.dtypes == ("f32", "f32")
    assert ops.read_bytes.tolist() == [0, 0]
    assert ops.output_bytes.tolist() == [0, 0]
    assert ops.node.tolist() == [-1, -1]
    assert ops.block.tolist() == [0, 1]
    inputs = Inputs.make(names=["w"], bytes=[3], consumers=[[0]])
    assert (inputs.node.tolist(), inputs.block.tolist()) == ([-1], [0])


COSTS = [np.nan, np.inf, -np.inf, -1.0]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("column", ["flops", "read_bytes", "output_bytes"])
def test_an_op_cost_that_is_no_cost_names_op_and_column(column, cost):
    with pytest.raises(InputError) as error:
        replaced(diamond(), **{f"ops_{column}": np.array([0, 1, cost, 3])})
    assert str(error.value) == (
        f"graph 'test': op 2 ('op2') has {column} {cost:g}: must be finite and not negative"
    )


@pytest.mark.parametrize("cost", COSTS)
def test_edge_bytes_that_are_no_cost_name_the_edge(cost):
    with pytest.raises(InputError) as error:
        replaced(diamond(), edges_bytes=np.array([8, 8, cost, 4]))
    assert str(error.value) == (
        f"graph 'test': edge 2 (1 -> 3) has bytes {cost:g}: must be finite and not negative"
    )


@pytest.mark.parametrize("cost", COSTS)
def test_input_bytes_that_are_no_cost_name_the_input(cost):
    with pytest.raises(InputError, match=r"input 0 \('input0'\) has bytes"):
        replaced(diamond(), inputs_bytes=np.array([cost]))


@pytest.mark.parametrize("cost", COSTS)
def test_given_costs_that_are_no_costs_name_op_or_edge(cost):
    fine = np.ones(4)
    bad = np.array([1, cost, 1, 1])
    with pytest.raises(InputError, match=r"op 1 \('op1'\) has given seconds"):
        dataclasses.replace(
            diamond(), given_costs=GivenCosts.make(op_seconds=bad, transfer_seconds=fine)
        )
    with pytest.raises(InputError, match=r"edge 1 \(0 -> 2\) has given seconds"):
        dataclasses.replace(
            diamond(), given_costs=GivenCosts.make(op_seconds=fine, transfer_seconds=bad)
        )


@pytest.mark.parametrize(("num_op_seconds", "num_transfers"), [(3, 4), (5, 4), (4, 3), (4, 5)])
def test_given_costs_of_the_wrong_length_say_both_lengths(num_op_seconds, num_transfers):
    with pytest.raises(InputError) as error:
        dataclasses.replace(
            diamond(),
            given_costs=GivenCosts.make(
                op_seconds=np.ones(num_op_seconds), transfer_seconds=np.ones(num_transfers)
            ),
        )
    assert str(error.value) == (
        f"graph 'test': given costs for {num_op_seconds} ops and {num_transfers} edges, "
        "but it has 4 and 4"
    )


def test_given_seconds_must_be_equal_on_the_edges_of_one_region():
    with pytest.raises(InputError) as error:
        dataclasses.replace(
            diamond(),
            given_costs=GivenCosts.make(op_seconds=np.ones(4), transfer_seconds=[1, 2, 1, 1]),
        )
    assert str(error.value) == (
        "graph 'test': edge 0 (0 -> 1) and edge 1 (0 -> 2) carry the same region with "
        "given seconds 1 and 2"
    )


def test_bytes_must_be_equal_on_the_edges_of_one_region():
    with pytest.raises(InputError) as error:
        graph_of([1, 1, 1], [(0, 2, 5), (0, 1, 6)])
    assert str(error.value) == (
        "graph 'test': edge 1 (0 -> 1) and edge 0 (0 -> 2) carry the same region with bytes 6 and 5"
    )


def test_a_cycle_names_an_op_on_it_and_lists_the_ops_in_the_direction_of_the_edges():
    with pytest.raises(InputError) as error:
        graph_of([1] * 5, [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 1, 1), (3, 4, 1)])
    message = str(error.value)
    rotations = {
        (1, "1 -> 2 -> 3 -> 1"),
        (2, "2 -> 3 -> 1 -> 2"),
        (3, "3 -> 1 -> 2 -> 3"),
    }
    assert message in {
        f"graph 'test': cycle through op {v} ('op{v}'): {ops}" for v, ops in rotations
    }


def test_a_long_cycle_is_cut_short_on_one_line():
    num = 50
    with pytest.raises(InputError) as error:
        graph_of([1] * num, [(v, (v + 1) % num, 1) for v in range(num)])
    message = str(error.value)
    assert "-> ... ->" in message
    assert message.count("->") == 7
    assert "\n" not in message


def test_an_op_that_feeds_itself_is_named():
    with pytest.raises(InputError) as error:
        graph_of([1, 1], [(0, 1, 1), (1, 1, 1)])
    assert str(error.value) == "graph 'test': edge 1 (1 -> 1) makes an op feed itself"


def test_a_region_is_a_number_of_its_op():
    graph = graph_of([1, 1], [(0, 1, 1)])
    with pytest.raises(InputError) as error:
        replaced(graph, edges_region=np.array([-1]))
    line = "graph 'test': edge 0 (0 -> 1) has region -1: must be at least 0"
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("edge", "unknown"), [((0, 4), 4), ((4, 0), 4), ((0, -1), -1), ((-1, 0), -1)]
)
def test_an_edge_to_an_unknown_op_names_edge_and_op(edge, unknown):
    with pytest.raises(InputError) as error:
        graph_of([1] * 4, [(0, 1, 1), (*edge, 1)])
    assert str(error.value) == (
        f"graph 'test': edge 1 ({edge[0]} -> {edge[1]}) names op {unknown}, but the ops are 0 to 3"
    )


def test_an_edge_given_twice_names_the_second_one():
    with pytest.raises(InputError) as error:
        graph_of([1, 1, 1], [(0, 1, 1), (1, 2, 1), (0, 1, 1)])
    assert str(error.value) == "graph 'test': edge 2 (0 -> 1) appears twice"


@pytest.mark.parametrize("op", [-1, 4])
def test_an_input_that_feeds_an_unknown_op_names_both(op):
    with pytest.raises(InputError) as error:
        graph_of([1] * 4, inputs=[(1, [0]), (1, [1, op])])
    assert str(error.value) == (
        f"graph 'test': input 'input1' feeds op {op}, but the ops are 0 to 3"
    )


def test_a_graph_without_ops_is_refused():
    with pytest.raises(InputError, match="graph 'test': has no ops"):
        graph_of([])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("names", ("a",)),
        ("kinds", ("a",) * 5),
        ("dtypes", ()),
        ("read_bytes", np.zeros(3)),
        ("output_bytes", np.zeros(3)),
        ("node", np.zeros(3, int)),
        ("block", np.zeros(3, int)),
    ],
)
def test_an_op_column_of_the_wrong_length_is_named(column, values):
    with pytest.raises(InputError) as error:
        replaced(diamond(), **{f"ops_{column}": values})
    assert str(error.value) == f"graph 'test': {len(values)} op {column} for 4 ops"


def test_kernels_are_given_for_all_ops_or_for_none():
    kernel = KernelSpec(
        expression="i->i:x0",
        operand_shapes=((2,),),
        operand_dtypes=("f32",),
        output_shape=(2,),
        dtype="f32",
    )
    with pytest.raises(InputError, match="graph 'test': 1 kernels for 4 ops"):
        replaced(diamond(), ops_kernels=(kernel,))


@pytest.mark.parametrize("column", ["dst", "region", "bytes"])
def test_an_edge_column_of_the_wrong_length_is_named(column):
    with pytest.raises(InputError, match=f"graph 'test': 4 edge src, 3 {column}"):
        replaced(diamond(), **{f"edges_{column}": getattr(diamond().edges, column)[:3]})


@pytest.mark.parametrize("column", ["node", "block", "bytes", "consumers"])
def test_an_input_column_of_the_wrong_length_is_named(column):
    with pytest.raises(InputError, match=f"graph 'test': 0 input {column} for 1 inputs"):
        replaced(diamond(), **{f"inputs_{column}": getattr(diamond().inputs, column)[:0]})


def test_graphs_and_their_tables_cannot_be_changed():
    graph = diamond()
    for table in (graph, graph.ops, graph.edges, graph.inputs):
        for field in dataclasses.fields(table):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(table, field.name, None)
            value = getattr(table, field.name)
            if isinstance(value, np.ndarray):
                with pytest.raises(ValueError, match="read-only"):
                    value[...] = 0
    for field in dataclasses.fields(graph.regions):
        with pytest.raises(ValueError, match="read-only"):
            getattr(graph.regions, field.name)[...] = 0


def test_a_graph_does_not_change_with_the_arrays_it_was_made_from():
    flops, size = np.ones(2), np.ones(1)
    graph = DataflowGraph(
        name="copied",
        ops=Ops.make(flops=flops),
        edges=Edges.make(src=[0], dst=[1], bytes=size),
        inputs=Inputs.make(),
    )
    flops[:], size[:] = -1, -1
    assert graph.ops.flops.tolist() == [1, 1]
    assert graph.edges.bytes.tolist() == [1]
