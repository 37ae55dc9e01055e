"""Graph files: round trips, and one line for everything that can be wrong with a file."""

import dataclasses
import json
import os

import numpy as np
import pytest
from problems import graph_of, published_graph, random_graph, with_given_costs

from doppler.graph import (
    Alternative,
    DataflowGraph,
    KernelSpec,
    load_graph,
    save_json,
    save_text,
)
from doppler.graph.dataflow import Edges, GivenCosts, Inputs, Ops
from doppler.graph.formats import write_atomically
from doppler.graph.text_format import render_text
from doppler.support.errors import InputError


def assert_same(left: DataflowGraph, right: DataflowGraph) -> None:
    """Every column of every table, exactly."""
    assert left.name == right.name
    for table, columns in {
        "ops": ("flops", "read_bytes", "output_bytes", "node", "block", "group", "pinned"),
        "edges": ("src", "dst", "region", "bytes"),
        "inputs": ("node", "block", "bytes"),
        "given_costs": ("op_seconds", "transfer_seconds", "kinds", "counts_memory"),
    }.items():
        one, other = getattr(left, table), getattr(right, table)
        assert (one is None) == (other is None)
        for column in columns if one is not None else ():
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column), column)
    for column in ("names", "kinds", "dtypes", "kernels", "reads", "boxes"):
        assert getattr(left.ops, column) == getattr(right.ops, column), column
    for column in ("names", "consumers", "boxes"):
        assert getattr(left.inputs, column) == getattr(right.inputs, column), column
    assert left.tensors == right.tensors


def full_graph() -> DataflowGraph:
    """Something in every column that the JSON format knows."""
    kernel = KernelSpec(
        expression="ij,jk->ik",
        operand_shapes=((2, 3), (3, 4)),
        operand_dtypes=("f32", "f64"),
        output_shape=(2, 4),
        dtype="f64",
    )
    return DataflowGraph(
        name='a "full" graph',
        ops=Ops.make(
            names=["load", "mm", "ä"],
            kinds=["copy", "einsum", "op"],
            dtypes=["f32", "f64", "c64"],
            flops=[0.1, 48, 1e300],
            read_bytes=[1, 2, 3],
            output_bytes=[3, 4, 5],
            node=[7, 8, -1],
            block=[1, 0, 2],
            group=[4, -1, 4],
            pinned=[-1, 1, -1],
            kernels=[None, kernel, None],
        ),
        edges=Edges.make(src=[0, 0, 1], dst=[1, 1, 2], region=[5, 2, 0], bytes=[10, 20, 1 / 3]),
        inputs=Inputs.make(
            names=["w", "x"], node=[3, 4], block=[2, 0], bytes=[9, 0], consumers=[[1, 0], []]
        ),
        given_costs=GivenCosts.make(op_seconds=[1e-9, 0, 2], transfer_seconds=[0.1, 0.2, 0.3]),
    )


# --- JSON -------------------------------------------------------------------------------------


def test_json_keeps_every_column(tmp_path):
    path = tmp_path / "new" / "graph.json"
    save_json(full_graph(), path)
    assert_same(load_graph(path), full_graph())


@pytest.mark.parametrize("seed", range(20))
def test_json_keeps_random_graphs(tmp_path, seed):
    graph = random_graph(np.random.default_rng(seed), 1 + 2 * seed)
    graph = with_given_costs(graph) if seed % 2 else graph
    save_json(graph, tmp_path / "graph.json")
    assert_same(load_graph(tmp_path / "graph.json"), graph)


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
def test_json_keeps_given_costs_of_every_form(tmp_path, name, counts_memory):
    given = GivenCosts.make(**GIVEN[name], counts_memory=counts_memory)
    graph = dataclasses.replace(full_graph(), given_costs=given)
    save_json(graph, tmp_path / "graph.json")
    assert_same(load_graph(tmp_path / "graph.json"), graph)


def version_2(**keys) -> str:
    ops = [{"given_seconds": [2, None]}, {"given_seconds": 3, "group": 0, "pinned": 1}]
    edges = [{"src": 0, "dst": 1, "given_seconds": {"cpu": {"gpu": 1}, "gpu": {"cpu": 2}}}]
    graph = {"format": "doppler-graph", "version": 2, "ops": ops, "edges": edges}
    return json.dumps({**graph, **keys})


def test_version_2_says_seconds_by_device_and_kind_groups_and_pins(tmp_path):
    path = tmp_path / "new.json"
    path.write_text(version_2())
    graph = load_graph(path)
    assert graph.ops.group.tolist() == [-1, 0]
    assert graph.ops.pinned.tolist() == [-1, 1]
    given = graph.given_costs
    assert given is not None and given.op_seconds is not None and given.counts_memory
    assert given.op_seconds.tolist() == [[2, np.inf], [3, 3]]
    assert given.kinds == ("cpu", "gpu")
    np.testing.assert_array_equal(given.transfer_seconds, [[[np.nan, 1], [2, np.nan]]])
    path.write_text(version_2(counts_memory=False))
    assert load_graph(path).given_costs.counts_memory is False


def test_version_1_is_read_as_ever_and_counts_no_memory_with_given_costs(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(
        '{"format": "doppler-graph", "version": 1, "ops": [{"given_seconds": 2}], "edges": []}'
    )
    given = load_graph(path).given_costs
    assert given is not None and given.op_seconds is not None
    assert given.op_seconds.tolist() == [2]
    assert not given.counts_memory


def test_the_text_format_cannot_say_what_version_2_can():
    for graph in (
        dataclasses.replace(with_given_costs(graph_of([1])), ops=Ops.make(flops=[1], group=[0])),
        dataclasses.replace(graph_of([1]), ops=Ops.make(flops=[1], pinned=[0])),
        dataclasses.replace(
            graph_of([1]),
            given_costs=GivenCosts.make(op_seconds=[[1, 2]], transfer_seconds=[]),
        ),
    ):
        with pytest.raises(InputError, match="the text format has none, write JSON"):
            render_text(graph)


def test_json_needs_nothing_but_ops_and_the_ends_of_edges(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(
        '{"format": "doppler-graph", "version": 1, "ops": [{}, {"flops": 3}],'
        ' "edges": [{"src": 0, "dst": 1}]}'
    )
    graph = load_graph(path)
    assert graph.name == "small"
    assert graph.ops.names == ("op0", "op1")
    assert graph.ops.flops.tolist() == [0, 3]
    assert graph.ops.block.tolist() == [0, 1]
    assert graph.edges.bytes.tolist() == [0]
    assert graph.given_costs is None
    assert len(graph.inputs) == 0


def test_a_name_given_to_the_reader_replaces_the_name_in_the_file(tmp_path):
    save_json(full_graph(), tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json", name="other").name == "other"


# --- Published text ---------------------------------------------------------------------------

# Blocks 0 and 3 are inputs; so ops 0, 1, 2 are blocks 1, 2, 4.
HAND_WRITTEN = """5
0, 3,
0, 0, 1
1, 2, 2
10000000000,20,matmul
5, 30
0,0,sum
"""


def test_text_gives_costs_in_units_of_a_tenth_of_a_nanosecond(tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(HAND_WRITTEN)
    graph = load_graph(path)
    assert graph.name == "hand"
    assert graph.num_ops == 3
    assert graph.given_costs is not None
    assert graph.given_costs.op_seconds.tolist() == [1.0, 5e-10, 0]
    assert graph.given_costs.transfer_seconds.tolist() == pytest.approx([2e-9, 2e-9, 3e-9])
    assert graph.ops.kinds == ("matmul", "op", "sum")
    assert list(zip(graph.edges.src, graph.edges.dst, strict=True)) == [(0, 1), (0, 2), (1, 2)]


def test_text_numbers_inputs_and_ops_by_the_blocks_of_the_file(tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(HAND_WRITTEN)
    graph = load_graph(path)
    assert graph.inputs.names == ("input0", "input3")
    assert graph.inputs.block.tolist() == [0, 3]
    assert graph.ops.block.tolist() == [1, 2, 4]


def test_text_written_and_read_again_is_the_same_graph(tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(HAND_WRITTEN)
    graph = load_graph(path)
    again = tmp_path / "again" / "hand.txt"
    save_text(graph, again)
    assert_same(load_graph(again), graph)
    assert again.read_text().splitlines()[:2] == ["5", "0, 3, "]


def test_text_puts_inputs_among_the_ops_by_node_and_block(tmp_path):
    graph = DataflowGraph(
        name="numbered",
        ops=Ops.make(flops=[1, 2, 3], output_bytes=[4, 5, 6], node=[0, 2, 2], block=[0, 0, 1]),
        edges=Edges.make(src=[0, 0], dst=[1, 2], bytes=[4, 4]),
        inputs=Inputs.make(
            names=["w0", "w1"], node=[1, 1], block=[1, 0], bytes=[7, 7], consumers=[[1], [2]]
        ),
    )
    path = tmp_path / "graph.txt"
    save_text(graph, path)
    assert path.read_text() == "5\n1, 2, \n0, 0\n1, 2\n1,4,op\n2,5,op\n3,6,op\n"


@pytest.mark.parametrize(
    "name", ["chain_mm_112nodes.txt", "ffnn_192nodes.txt", "gdp_transformer_block_215nodes.txt"]
)
def test_published_files_survive_text_and_json(tmp_path, name):
    graph = load_graph(published_graph(name))
    assert graph.num_ops + len(graph.inputs) == int(name.split("_")[-1].removesuffix("nodes.txt"))
    save_text(graph, tmp_path / name)
    assert_same(load_graph(tmp_path / name), graph)
    save_json(graph, tmp_path / "graph.json")
    assert_same(load_graph(tmp_path / "graph.json"), graph)


def test_published_files_are_written_as_they_were_read(tmp_path):
    path = published_graph("gdp_chain_mm_112nodes.txt")
    save_text(load_graph(path), tmp_path / "again.txt")

    def words(text: str) -> list[list[str]]:
        return [line.replace(",", " ").split() for line in text.splitlines()]

    assert words((tmp_path / "again.txt").read_text()) == words(path.read_text())


# --- What is wrong with a file ------------------------------------------------------------------


def message_of(path) -> str:
    """The one line that a bad file ends in; it begins with the file."""
    with pytest.raises(InputError) as error:
        load_graph(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{path}:")
    return message.removeprefix(str(path))


def text_with(line: int, new: str | None) -> str:
    """HAND_WRITTEN with another line (counted from 1), or without it."""
    lines = HAND_WRITTEN.splitlines()
    lines[line - 1 : line] = [] if new is None else [new]
    return "\n".join(lines) + "\n"


SHORT = (
    ": file ends early: a published graph has the number of blocks, the input ids, edge sources, "
    "edge destinations, then one line per op"
)
BAD_TEXT = {
    "empty file": ("", ":1" + SHORT),
    "only blank lines": ("\n \n", ":1" + SHORT),
    "no op lines": ("2\n0\n\n\n", ":3" + SHORT),
    "number of blocks is a word": (text_with(1, "five"), ":1: 'five' is not an integer"),
    "number of blocks is a fraction": (text_with(1, "5.0"), ":1: '5.0' is not an integer"),
    "two numbers of blocks": (text_with(1, "5 6"), ":1: expected the number of blocks, found"),
    "no blocks": (text_with(1, "0"), ":1: expected the number of blocks, found '0'"),
    "negative number of blocks": (text_with(1, "-5"), ":1: expected the number of blocks"),
    "input id is a word": (text_with(2, "0, x,"), ":2: 'x' is not an integer"),
    "input id out of range": (text_with(2, "0, 5,"), ":2: input ids must be distinct and below 5"),
    "negative input id": (text_with(2, "-1, 3,"), ":2: input ids must be distinct and below 5"),
    "input id twice": (text_with(2, "3, 3,"), ":2: input ids must be distinct and below 5"),
    "source is a word": (text_with(3, "0, 0, y"), ":3: 'y' is not an integer"),
    "destination is a word": (text_with(4, "1, 2, 2a"), ":4: '2a' is not an integer"),
    "too few destinations": (text_with(4, "1, 2"), ":4: 2 edge destinations for 3 sources"),
    "too many destinations": (text_with(4, "1, 2, 2, 2"), ":4: 4 edge destinations for 3 sources"),
    "source unknown": (
        text_with(3, "0, 0, 3"),
        ":3: edge to unknown op 3: the ops are 0 to 2",
    ),
    "destination unknown": (
        text_with(4, "1, 2, -1"),
        ":4: edge to unknown op -1: the ops are 0 to 2",
    ),
    "op line missing": (
        text_with(7, None),
        ":7: 2 op lines for 3 ops (5 blocks less 2 inputs)",
    ),
    "op line too many": (
        HAND_WRITTEN + "1,1\n",
        ":8: 4 op lines for 3 ops (5 blocks less 2 inputs)",
    ),
    "cost line with one field": (text_with(6, "5"), ":6: expected comp,comm[,kind], found '5'"),
    "cost line with four fields": (text_with(6, "5,3,a,b"), ":6: expected comp,comm[,kind]"),
    "cost is a word": (text_with(5, "x,20"), ":5: expected comp,comm[,kind], found 'x,20'"),
    "blank op line": (text_with(6, ""), ":6: expected comp,comm[,kind], found ''"),
    "negative compute cost": (
        text_with(5, "-1,20"),
        ":5: op 0 has cost -1: must be finite and not negative",
    ),
    "negative transfer cost": (text_with(7, "0,-2.5"), ":7: op 2 has cost -2.5: must be finite"),
    "NaN cost": (text_with(6, "nan,30"), ":6: op 1 has cost nan: must be finite"),
    "infinite cost": (text_with(6, "5,inf"), ":6: op 1 has cost inf: must be finite"),
    "edge twice": (text_with(4, "1, 1, 2"), ": graph 'graph': edge 1 (0 -> 1) appears twice"),
    "op feeds itself": (text_with(4, "1, 0, 2"), ": graph 'graph': edge 1 (0 -> 0) makes an op"),
    "cycle": (text_with(4, "1, 2, 0"), ": graph 'graph': cycle through op "),
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXT.values(), ids=BAD_TEXT.keys())
def test_a_bad_text_file_ends_in_one_line_with_file_and_line_number(tmp_path, text, message):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    assert message_of(path).startswith(message)


def test_a_cycle_in_a_file_lists_its_ops(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(text_with(4, "1, 2, 0"))
    assert message_of(path).endswith(("0 -> 1 -> 0", "1 -> 0 -> 1"))


def bad_json(**changes) -> str:
    """A good file, its top-level keys replaced."""
    good = {
        "format": "doppler-graph",
        "version": 1,
        "ops": [{"flops": 1}, {"flops": 1}],
        "edges": [{"src": 0, "dst": 1}],
        "inputs": [{"name": "w", "consumers": [0]}],
    }
    return json.dumps({**good, **changes})


def bad_op(row: dict) -> str:
    return bad_json(ops=[{"flops": 1}, row])


def new_op(row: dict) -> str:
    """The same of version 2."""
    return version_2(ops=[{"given_seconds": [2, None]}, row], edges=[])


def bad_edge(row: dict) -> str:
    return bad_json(edges=[row])


def bad_input(row: dict) -> str:
    return bad_json(inputs=[row])


KERNEL = {
    "expression": "copy",
    "operand_shapes": [[2]],
    "operand_dtypes": ["f32"],
    "output_shape": [2],
    "dtype": "f32",
}
READ = {"operand": 0, "op": 0, "box": [[0, 2]]}
TENSOR = {"name": "x", "shape": [2], "dtype": "f32"}
BAD_JSON = {
    "empty file": ("", ":1:1: Expecting value"),
    "syntax": ('{"format": "doppler-graph",\n "version": }', ":2:13: Expecting value"),
    "truncated": (bad_json()[:-1], ":1:"),
    "a list": ("[]", ": not a doppler-graph file"),
    "no format": ("{}", ": not a doppler-graph file (no 'format': 'doppler-graph')"),
    "wrong format": (bad_json(format="other"), ": not a doppler-graph file"),
    "wrong version": (bad_json(version=3), ": version 3, this program reads 1 and 2"),
    "no version": (bad_json(version=None), ": version None, this program reads 1 and 2"),
    "seconds for different numbers of devices": (
        new_op({"given_seconds": [1]}),
        ": ops[1].given_seconds: 1 devices, those of ops[0] are 2",
    ),
    "an op that runs nowhere": (
        new_op({"given_seconds": [None, None]}),
        ": graph 'graph': op 1 ('op1') has given seconds inf",
    ),
    "an op without seconds": (new_op({}), ": ops[1].given_seconds: expected a number, found None"),
    "a group by name": (
        new_op({"given_seconds": 1, "group": "a"}),
        ": ops[1].group: expected an integer, found 'a'",
    ),
    "an unknown key": (
        new_op({"given_seconds": 1, "groups": 1}),
        ": ops[1].groups: no such key, did you mean 'group'?",
    ),
    "a group in version 1": (bad_op({"group": 1}), ": ops[1].group: no such key, "),
    "seconds by one kind": (
        version_2(edges=[{"src": 0, "dst": 1, "given_seconds": {"cpu": 1}}]),
        ": edges[0].given_seconds.cpu: expected an object of seconds by kind of the receiver",
    ),
    "no flag": (version_2(counts_memory=1), ": counts_memory: expected true or false, found 1"),
    "ops not a list": (bad_json(ops={}), ": 'ops' must be a list of objects"),
    "op not an object": (bad_json(ops=[1]), ": 'ops' must be a list of objects"),
    "edges not a list": (bad_json(edges="none"), ": 'edges' must be a list of objects"),
    "no ops": (bad_json(ops=[], edges=[], inputs=[]), ": graph 'graph': has no ops"),
    "edge without source": (
        bad_edge({"dst": 1}),
        ": edges[0].src: expected an integer, found None",
    ),
    "edge without destination": (bad_edge({"src": 0}), ": edges[0].dst: expected an integer"),
    "source is a fraction": (bad_edge({"src": 0.5, "dst": 1}), ": edges[0].src: expected an"),
    "source is a truth value": (bad_edge({"src": False, "dst": 1}), ": edges[0].src: expected an"),
    "source beyond all integers": (
        bad_edge({"src": 10**30, "dst": 1}),
        ": edges[0].src: the integer is too large",
    ),
    "more digits than can be read": (
        '{"format": "doppler-graph", "version": ' + 5000 * "1" + "}",
        ": the integer 11111111... of 5000 digits is too large",
    ),
    "brackets too deep": (200_000 * "[", ": "),
    "source unknown": (
        bad_edge({"src": 2, "dst": 1}),
        ": graph 'graph': edge 0 (2 -> 1) names op 2, but the ops are 0 to 1",
    ),
    "bytes are a word": (
        bad_edge({"src": 0, "dst": 1, "bytes": "8"}),
        ": edges[0].bytes: expected a number, found '8'",
    ),
    "negative bytes": (
        bad_edge({"src": 0, "dst": 1, "bytes": -8}),
        ": graph 'graph': edge 0 (0 -> 1) has bytes -8: must be finite and not negative",
    ),
    "cycle": (
        bad_json(edges=[{"src": 0, "dst": 1}, {"src": 1, "dst": 0}]),
        ": graph 'graph': cycle through op ",
    ),
    "flops are a word": (bad_op({"flops": "1"}), ": ops[1].flops: expected a number, found '1'"),
    "flops are a list": (bad_op({"flops": [1]}), ": ops[1].flops: expected a number, found [1]"),
    "flops are NaN": (bad_op({"flops": float("nan")}), ": ops[1].flops: expected a finite number"),
    "flops beyond all numbers": (
        bad_op({"flops": 10**400}),
        ": ops[1].flops: the number is too large",
    ),
    "negative flops": (bad_op({"flops": -1}), ": graph 'graph': op 1 ('op1') has flops -1"),
    "node is a word": (bad_op({"node": "a"}), ": ops[1].node: expected an integer, found 'a'"),
    "given seconds for one op only": (
        bad_op({"given_seconds": 1}),
        ": ops[0].given_seconds: expected a number, found None",
    ),
    "given seconds for ops only": (
        bad_json(ops=[{"given_seconds": 1}] * 2),
        ": edges[0].given_seconds: expected a number, found None",
    ),
    "kernel is a word": (
        bad_op({"kernel": "mm"}),
        ": ops[1].kernel: expected an object, found 'mm'",
    ),
    "kernel without shapes": (
        bad_op({"kernel": {"expression": "i->i"}}),
        ": ops[1].kernel: 'operand_shapes' is missing",
    ),
    "kernel without dtypes": (
        bad_op({"kernel": KERNEL | {"operand_dtypes": None}}),
        ": ops[1].kernel.operand_dtypes: expected a list, found None",
    ),
    "kernel with a number for its expression": (
        bad_op({"kernel": KERNEL | {"expression": 1}}),
        ": ops[1].kernel.expression: expected text, found 1",
    ),
    "kernel with a fraction in a shape": (
        bad_op({"kernel": KERNEL | {"operand_shapes": [[2], [1.5]]}}),
        ": ops[1].kernel.operand_shapes[1]: expected an integer, found 1.5",
    ),
    "kernel with a number for a shape": (
        bad_op({"kernel": KERNEL | {"output_shape": 2}}),
        ": ops[1].kernel.output_shape: expected a list of integers, found 2",
    ),
    "reads are a word": (
        bad_op({"reads": "x"}),
        ": ops[1].reads: expected a list, found 'x'",
    ),
    "read without a box": (
        bad_op({"reads": [READ, {"operand": 0, "op": 0}]}),
        ": ops[1].reads[1]: 'box' is missing",
    ),
    "read from nowhere": (
        bad_op({"reads": [{"operand": 0, "box": []}]}),
        ": ops[1].reads[0]: expected either 'op' or 'input'",
    ),
    "read from two places": (
        bad_op({"reads": [READ | {"input": 0}]}),
        ": ops[1].reads[0]: expected either 'op' or 'input'",
    ),
    "read of a box that is none": (
        bad_op({"reads": [READ | {"box": [[0, 1, 2]]}]}),
        ": ops[1].reads[0].box: expected [start, stop], found [0, 1, 2]",
    ),
    "read of a flat box": (
        bad_op({"reads": [READ | {"box": [0, 1]}]}),
        ": ops[1].reads[0].box: expected a list of integers, found 0",
    ),
    "read of an op without a kernel": (
        bad_op({"reads": [READ]}),
        ": graph 'graph': reads need kernels and boxes of all ops",
    ),
    "box for one op only": (
        bad_op({"box": []}),
        ": ops[0].box: expected a list of [start, stop], found None",
    ),
    "box without tensors": (
        bad_json(ops=[{"box": []}] * 2),
        ": graph 'graph': op 0 ('op0') is a block of tensor -1, but there are 0 tensors",
    ),
    "tensors are a word": (
        bad_json(tensors="x"),
        ": tensors: expected a list, found 'x'",
    ),
    "tensor is a word": (
        bad_json(tensors=[TENSOR, "x"]),
        ": tensors[1]: expected an object, found 'x'",
    ),
    "tensor without a name": (
        bad_json(tensors=[{"shape": [], "dtype": "f32"}]),
        ": tensors[0]: 'name' is missing",
    ),
    "tensor that is an output by number": (
        bad_json(tensors=[TENSOR | {"is_output": 1}]),
        ": tensors[0].is_output: expected true or false, found 1",
    ),
    "tensor twice": (
        bad_json(tensors=[TENSOR, TENSOR]),
        ": graph 'graph': two tensors are called 'x'",
    ),
    "consumers are no list": (
        bad_input({"consumers": 1}),
        ": inputs[0].consumers: expected a list of integers, found 1",
    ),
    "consumer is a word": (
        bad_input({"consumers": [0, "1"]}),
        ": inputs[0].consumers: expected an integer, found '1'",
    ),
    "consumer unknown": (
        bad_input({"name": "w", "consumers": [2]}),
        ": graph 'graph': input 'w' feeds op 2, but the ops are 0 to 1",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_a_bad_json_file_ends_in_one_line_with_file_and_place(tmp_path, text, message):
    path = tmp_path / "graph.json"
    path.write_text(text)
    assert message_of(path).startswith(message)


@pytest.mark.parametrize("name", ["graph.txt", "graph.json"])
def test_a_missing_or_binary_file_or_a_directory_ends_in_one_line(tmp_path, name):
    path = tmp_path / name
    assert message_of(path) == ": No such file or directory"
    path.write_bytes(bytes(range(256)))
    assert message_of(path) == ": not UTF-8 text (byte 128)"
    path.unlink()
    path.mkdir()
    assert message_of(path) == ": Is a directory"


# --- Writing ------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_write_that_fails_leaves_the_old_content_and_no_partial_file(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_atomically(path, "old")

    def fail(*args):
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is gone"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_text_refuses_what_it_cannot_say(tmp_path):
    two = graph_of([1, 1], [(0, 1, 4, 0), (0, 1, 8, 1)])
    with pytest.raises(InputError, match="two regions between one pair"):
        save_text(two, tmp_path / "graph.txt")
    apart = graph_of([1, 1, 1], [(0, 1, 4, 0), (0, 2, 8, 1)])
    with pytest.raises(InputError, match="op 0 has 2 regions: the text format has one for each op"):
        save_text(apart, tmp_path / "graph.txt")
    either = (Alternative(backend="small", seconds=(1.0,), loss=0.0),)
    plain = graph_of([1])
    choosing = dataclasses.replace(
        plain, ops=dataclasses.replace(plain.ops, alternatives=(either,))
    )
    with pytest.raises(InputError, match="alternatives: the text format has none"):
        save_text(choosing, tmp_path / "graph.txt")
    with pytest.raises(InputError, match="op 1: kind 'a,b'"):
        save_text(graph_of([1, 1], kinds=["a", "a,b"]), tmp_path / "graph.txt")
    assert not (tmp_path / "graph.txt").exists()
