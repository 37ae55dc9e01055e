"""What an executable graph says of its blocks: regions of reads, and what contradicts itself."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from programs import Builder, random_lowered

from doppler.einsum import lower, parse_program
from doppler.einsum.program import Piece
from doppler.graph import DataflowGraph, Read, Tensor, load_graph, save_json
from doppler.graph.dataflow import Edges
from doppler.graph.reads import box_shape, regions_of_reads
from doppler.support.errors import InputError


def small() -> DataflowGraph:
    """Two rows of a product, and a concatenation that reads a part of one and all of the other.

    Ops: 0, 1 xy; 2, 3 xy.formation; 4 out.
    """
    b = Builder()
    xy = b.op("xy", "ij,jk->ik", b.input("x", (4, 3)), b.input("y", (3, 2)))
    b.select(
        "out",
        (4, 3),
        (xy, xy),
        [Piece(0, ((1, 4), (0, 2)), (0, 0)), Piece(1, ((0, 4), (1, 2)), (0, 2))],
    )
    return lower(b.program(), {"xy": (2, 1, 1)})


def with_op(graph: DataflowGraph, v: int, **changed) -> DataflowGraph:
    """The graph with other entries in the columns of one op."""
    columns = {}
    for column, value in changed.items():
        entries = list(getattr(graph.ops, column))
        entries[v] = value
        columns[column] = np.array(entries) if column == "node" else tuple(entries)
    return dataclasses.replace(graph, ops=dataclasses.replace(graph.ops, **columns))


def with_read(graph: DataflowGraph, v: int, position: int, **changed) -> DataflowGraph:
    reads = list(graph.ops.reads[v])
    reads[position] = dataclasses.replace(reads[position], **changed)
    return with_op(graph, v, reads=tuple(reads))


def with_inputs(graph: DataflowGraph, **changed) -> DataflowGraph:
    return dataclasses.replace(graph, inputs=dataclasses.replace(graph.inputs, **changed))


# --- Regions --------------------------------------------------------------------------------------


def test_the_reads_of_an_op_are_regions_of_its_producers():
    graph = small()
    box = ((0, 2), (0, 2))
    assert graph.ops.reads[4] == (
        Read(operand=0, source=2, from_input=False, box=((1, 2), (0, 2)), start=(0, 0)),
        Read(operand=0, source=3, from_input=False, box=box, start=(1, 0)),
        Read(operand=0, source=2, from_input=False, box=((0, 2), (1, 2)), start=(0, 2)),
        Read(operand=0, source=3, from_input=False, box=((0, 2), (1, 2)), start=(2, 2)),
    )
    # Ops 0 and 1 have one region, 2 and 3 have two.
    assert graph.regions.src.tolist() == [0, 1, 2, 2, 3, 3]
    assert regions_of_reads(graph) == [[-1, -1], [-1, -1], [0], [1], [2, 4, 3, 5]]
    # Not the labels count, but their order.
    edges = dataclasses.replace(graph.edges, region=graph.edges.region * 7 + 3)
    assert regions_of_reads(dataclasses.replace(graph, edges=edges))[4] == [2, 4, 3, 5]


@pytest.mark.parametrize("seed", range(15))
def test_regions_of_reads_carry_the_bytes_that_are_read(seed):
    graph = random_lowered(seed)
    size = {"f32": 4, "f64": 8}
    for regions, reads in zip(regions_of_reads(graph), graph.ops.reads, strict=True):
        for region, read in zip(regions, reads, strict=True):
            assert (region < 0) == read.from_input
            if not read.from_input:
                assert graph.regions.src[region] == read.source
                volume = np.prod(box_shape(read.box))
                assert graph.regions.bytes[region] == volume * size[graph.ops.dtypes[read.source]]


# --- Round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_files_keep_what_a_graph_computes(tmp_path, seed):
    graph = random_lowered(seed)
    save_json(graph, tmp_path / "graph.json")
    again = load_graph(tmp_path / "graph.json")
    for column in ("src", "dst", "region", "bytes"):
        assert getattr(again.edges, column).tolist() == getattr(graph.edges, column).tolist()
    for column in ("names", "kernels", "reads", "boxes"):
        assert getattr(again.ops, column) == getattr(graph.ops, column)
    for column in ("names", "consumers", "boxes"):
        assert getattr(again.inputs, column) == getattr(graph.inputs, column)
    assert again.tensors == graph.tensors
    assert regions_of_reads(again) == regions_of_reads(graph)
    assert {type(read) for reads in again.ops.reads for read in reads} == {Read}


# --- What is refused ------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[DataflowGraph], object], str]] = {
    "two tensors of one name": (
        lambda g: dataclasses.replace(g, tensors=(*g.tensors, g.tensors[0])),
        "two tensors are called 'x'",
    ),
    "a block of no tensor": (
        lambda g: with_op(g, 4, node=9),
        "op 4 ('out[0,0]') is a block of tensor 9, but there are 5 tensors",
    ),
    "a block outside its tensor": (
        lambda g: with_op(g, 1, boxes=((3, 5), (0, 2))),
        "op 1 ('xy[1,0,0]') is the box ((3, 5), (0, 2)) of tensor 'xy', whose shape is (4, 2)",
    ),
    "a block of too few dimensions": (
        lambda g: with_op(g, 1, boxes=((2, 4),)),
        "op 1 ('xy[1,0,0]') is the box ((2, 4),) of tensor 'xy', whose shape is (4, 2)",
    ),
    "an empty block": (
        lambda g: with_op(g, 1, boxes=((2, 2), (0, 2))),
        "op 1 ('xy[1,0,0]') is the box ((2, 2), (0, 2)) of tensor 'xy', whose shape is (4, 2)",
    ),
    "a block of another shape than its kernel's": (
        lambda g: with_op(g, 1, boxes=((1, 4), (0, 2))),
        "op 1 ('xy[1,0,0]') computes (2, 2) of f32, but is the box ((1, 4), (0, 2)) of the f32 "
        "tensor 'xy'",
    ),
    "a block of another dtype than its tensor's": (
        lambda g: dataclasses.replace(
            g,
            tensors=(
                *g.tensors[:4],
                Tensor(name="out", shape=(4, 3), dtype="f16", is_output=True),
            ),
        ),
        "op 4 ('out[0,0]') computes (4, 3) of f32, but is the box ((0, 4), (0, 3)) of the f16 "
        "tensor 'out'",
    ),
    "an input outside its tensor": (
        lambda g: with_inputs(g, boxes=(((0, 2), (0, 3)), ((2, 5), (0, 3)), ((0, 3), (0, 2)))),
        "input 1 ('x[1,0]') is the box ((2, 5), (0, 3)) of tensor 'x', whose shape is (4, 3)",
    ),
    "too few input boxes": (
        lambda g: with_inputs(g, boxes=g.inputs.boxes[:1]),
        "1 input boxes for 3 inputs",
    ),
    "reads without boxes": (
        lambda g: dataclasses.replace(g, ops=dataclasses.replace(g.ops, boxes=())),
        "reads need kernels and boxes of all ops, and boxes of inputs",
    ),
    "reads without input boxes": (
        lambda g: with_inputs(g, boxes=()),
        "reads need kernels and boxes of all ops, and boxes of inputs",
    ),
    "a read of no kernel": (
        lambda g: with_op(g, 2, kernels=None),
        "reads need kernels and boxes of all ops, and boxes of inputs",
    ),
    "a read of no op": (
        lambda g: with_read(g, 4, 1, source=5),
        "op 4 ('out[0,0]') reads op 5, which does not exist",
    ),
    "a read of no input": (
        lambda g: with_read(g, 0, 1, source=-1),
        "op 0 ('xy[0,0,0]') reads input -1, which does not exist",
    ),
    "a read for no operand": (
        lambda g: with_read(g, 4, 1, operand=1),
        "op 4 ('out[0,0]') reads operand 1, but its kernel has 1",
    ),
    "a read outside its source": (
        lambda g: with_read(g, 4, 0, box=((1, 3), (0, 2))),
        "op 4 ('out[0,0]') reads the box ((1, 3), (0, 2)) of op 2, which holds (2, 2)",
    ),
    "a read outside its input": (
        lambda g: with_read(g, 0, 0, box=((0, 2), (1, 4))),
        "op 0 ('xy[0,0,0]') reads the box ((0, 2), (1, 4)) of input 0, which holds (2, 3)",
    ),
    "a read outside its operand": (
        lambda g: with_read(g, 4, 1, start=(3, 0)),
        "op 4 ('out[0,0]') reads (2, 2) elements into operand 0 from (3, 0) on, whose shape is "
        "(4, 3)",
    ),
    "a read from too few dimensions on": (
        lambda g: with_read(g, 4, 1, start=(1,)),
        "op 4 ('out[0,0]') reads (2, 2) elements into operand 0 from (1,) on, whose shape is "
        "(4, 3)",
    ),
    "a read of another dtype": (
        lambda g: with_op(
            g, 4, kernels=dataclasses.replace(g.ops.kernels[4], operand_dtypes=("f16",))
        ),
        "op 4 ('out[0,0]') reads op 2, which holds f32, as f16 operand 0",
    ),
    "pieces that overlap": (
        lambda g: with_read(g, 4, 1, start=(0, 0)),
        "op 4 ('out[0,0]') reads pieces of operand 0 that overlap",
    ),
    "an op that nobody reads, but an edge": (
        lambda g: with_read(g, 2, 0, source=1),
        "0 boxes of op 0 ('xy[0,0,0]') are read, but its edges have 1 regions",
    ),
    "a region that nobody reads": (
        lambda g: with_op(g, 4, reads=g.ops.reads[4][:3]),
        "1 boxes of op 3 ('xy.formation[1,0]') are read, but its edges have 2 regions",
    ),
    "a region without a read": (
        lambda g: dataclasses.replace(
            g,
            edges=Edges.make(
                src=[*g.edges.src, 0],
                dst=[*g.edges.dst, 4],
                region=[*g.edges.region, 0],
                bytes=[*g.edges.bytes, 16],
            ),
        ),
        "op 4 ('out[0,0]') does not read the box of op 0 ('xy[0,0,0]') that its edge carries",
    ),
    "a read that the input does not know of": (
        lambda g: with_inputs(g, consumers=((0,), (1,), (0,))),
        "op 1 ('xy[1,0,0]') reads input 2 ('y[0,0]'), but is not among its consumers",
    ),
    "a consumer that does not read": (
        lambda g: with_inputs(g, consumers=((0, 4), (1,), (0, 1))),
        "op 4 ('out[0,0]') does not read input 0 ('x[0,0]'), but is among its consumers",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_contradiction_ends_in_one_line_that_names_op_or_input(change, message):
    with pytest.raises(InputError) as error:
        change(small())
    assert str(error.value) == f"graph 'test': {message}"


def test_swapped_regions_are_noticed_where_they_are_not_symmetric():
    """Two ops read two boxes of one op: each edge must carry the box that its op reads."""
    b = Builder()
    x = b.op("x", "i->i:exp(x0)", b.input("in", (6,)))
    b.op("y", "i->i:neg(x0)", x)
    graph = lower(b.program(), {"y": (3,)})
    assert regions_of_reads(graph) == [[-1], [0], [1], [2]]
    swapped = dataclasses.replace(graph.edges, region=graph.edges.region[[1, 0, 2]])
    with pytest.raises(InputError, match=r"op 1 \('y\[0\]'\) reads a box of op 0 .* without"):
        dataclasses.replace(graph, edges=swapped)


def test_a_read_without_an_edge_is_refused():
    """The box that it reads must not pass for a region of the next op."""
    program = parse_program(
        "program p\ninput x[4] f32\na[i] = relu(x[i])\nb[i] = exp(x[i])\nc[i] = a[i] + b[i]\n"
    )
    graph = lower(program, {})
    edges = graph.edges
    kept = edges.src != 0
    fewer = Edges.make(
        src=edges.src[kept], dst=edges.dst[kept], bytes=edges.bytes[kept], region=edges.region[kept]
    )
    with pytest.raises(InputError, match=r"1 boxes of op 0 .* are read, but its"):
        dataclasses.replace(graph, edges=fewer)
