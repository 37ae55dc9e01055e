"""A graph in words, numbers and a picture."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from problems import graph_of

from doppler.einsum import load_program, lower, parse_program
from doppler.graph.dataflow import DataflowGraph
from doppler.report.description import counts, describe, quantity, split_rows
from doppler.report.graph_picture import group_ops, save_graph_picture
from doppler.trace.gantt import PALETTE


@pytest.fixture(scope="module")
def chainmm() -> DataflowGraph:
    program = load_program("workloads/chainmm.einsum")
    return lower(program, program.given_splits)


def test_words_about_chainmm(chainmm):
    lines = describe(chainmm)
    assert lines[0] == "chainmm: 76 ops, 80 edges, 36 inputs"
    assert lines[1] == ("6 TFLOP in all; ops write 4.8 GB, edges carry 5.6 GB, inputs hold 2 GB")
    assert lines[2] == "5 levels, widths: 32 12 16 8x2"
    assert lines[3] == "fan-in: 0:32 1:16 2:24 4:4; fan-out: 0:8 1:64 4:4"
    table = "\n".join(" ".join(line.split()) for line in lines[4:])
    assert "matmul 48 6 T 100.0% 3.2 GB" in table
    assert "DE matmul f32 10000x10000 2x2 of 4 partials" in table
    assert "Y elementwise f32 10000x10000 4x2" in table


def test_numbers_about_chainmm(chainmm):
    found = counts(chainmm)
    assert found["level_widths"] == [32, 12, 16, 8, 8] and found["num_levels"] == 5
    assert found["kinds"] == {"elementwise": 8, "formation": 20, "matmul": 48}
    assert found["fan_in"] == {"0": 32, "1": 16, "2": 24, "4": 4}
    assert found["fan_out"] == {"0": 8, "1": 64, "4": 4}
    assert found["flops"] == 3 * 2 * 10_000**3 + 6 * 10_000**2
    assert found["input_bytes"] == 5 * 10_000**2 * 4


def test_a_scalar_and_uneven_blocks_are_told():
    text = "program p\ninput A[7] f32\nB[i] = exp(A[i])\nC[] = sum(i) B[i]\n"
    graph = lower(parse_program(text), {"B": (3,), "C": (2,)})
    assert split_rows(graph) == [
        ("B", "elementwise", "f32", "7", "3"),
        ("C.partials", "reduction", "f32", "scalar", "1 of 2 partials"),
        ("C", "formation", "f32", "scalar", "1"),
    ]


def test_a_graph_that_does_not_tell_its_blocks_has_no_table_of_them():
    graph = graph_of([1.0, 2.0], [(0, 1, 8.0)])
    assert split_rows(graph) == []
    assert not any("blocks" in line for line in describe(graph))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2 GB"), (3.14159e15, "3.14 PB")],
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_blocks_and_sums_of_one_op_of_the_program_are_one_box_left_of_its_readers(chainmm):
    groups = group_ops(chainmm)
    assert groups.names == ["DE", "CDE", "AB", "Y"]
    assert np.bincount(groups.of_V).tolist() == [20, 24, 24, 8]
    edges = [
        (groups.names[s], groups.names[d]) for s, d in zip(groups.src, groups.dst, strict=True)
    ]
    assert sorted(edges) == [("AB", "Y"), ("CDE", "Y"), ("DE", "CDE")]
    assert groups.level_G.tolist() == [0, 1, 1, 2], "AB stands before its reader, not at the left"
    assert sorted(groups.place_G[1:3].tolist()) == [-0.5, 0.5]
    inside = groups.of_V[chainmm.edges.src] == groups.of_V[chainmm.edges.dst]
    assert groups.bytes.sum() == chainmm.edges.bytes[~inside].sum()


def test_ops_of_no_program_are_boxes_of_their_own_or_by_kind_and_level():
    chain = graph_of([1.0] * 3, [(0, 1, 8.0), (1, 2, 8.0)])
    assert group_ops(chain).names == ["op0", "op1", "op2"]
    wide = graph_of([1.0] * 200, [(0, v, 8.0) for v in range(1, 200)])
    groups = group_ops(wide)
    assert groups.names == ["op", "op"] and np.bincount(groups.of_V).tolist() == [1, 199]


def test_boxes_that_would_wait_for_each_other_are_not_made():
    # Blocks of A and B take turns: A[0] -> B[0] -> A[1].
    graph = graph_of([1.0] * 3, [(0, 1, 8.0), (1, 2, 8.0)])
    names = ("A[0]", "B[0]", "A[1]")
    ops = replace(graph.ops, names=names, node=np.array([0, 1, 0]))
    assert len(group_ops(replace(graph, ops=ops)).names) == 3


def test_the_picture_is_drawn(chainmm, tmp_path):
    save_graph_picture(chainmm, tmp_path / "kinds.png")
    devices = [f"device {v % 4}" for v in range(chainmm.num_ops)]
    save_graph_picture(chainmm, tmp_path / "devices.png", device_V=devices)
    colours = []
    for name in ("kinds.png", "devices.png"):
        pixels = (imread(tmp_path / name)[..., :3] * 255).round().astype(int).reshape(-1, 3)
        colours.append({f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.unique(pixels, axis=0)})
    two_kinds, four_devices = colours
    assert set(PALETTE[:2]) <= two_kinds and not set(PALETTE[2:]) & two_kinds
    assert set(PALETTE[:4]) <= four_devices and not set(PALETTE[4:]) & four_devices


def test_a_long_graph_goes_on_in_the_next_band(tmp_path):
    edges = [(v, v + 1, 8.0) for v in range(29)]
    save_graph_picture(graph_of([1.0] * 30, edges), tmp_path / "long.png")
    height, width, _ = imread(tmp_path / "long.png").shape
    assert width < 1600, "nine columns"
    save_graph_picture(graph_of([1.0] * 9, edges[:8]), tmp_path / "short.png")
    assert height > imread(tmp_path / "short.png").shape[0]


def test_a_single_op_is_drawn_too(tmp_path):
    save_graph_picture(graph_of([1.0]), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 0
