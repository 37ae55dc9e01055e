"""Graphs executed op by op: small programs, split in many ways, against plain torch."""

import weakref

import numpy as np
import pytest
import torch
from problems import REPOSITORY, graph_of
from programs import PROGRAMS, Builder, masked, product_chain, random_order, random_splits

from doppler.einsum import lower
from doppler.einsum.program import Piece, Program
from doppler.executor import assemble, cut, random_inputs, run_graph
from doppler.graph import load_graph
from doppler.graph.scalar import DTYPES, FUNCTIONS
from doppler.support.errors import InputError


def assert_same(results: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 2e-3 if value.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(results[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("make", PROGRAMS)
def test_any_split_in_any_order_computes_what_plain_torch_does(make, seed):
    program, plain = make()
    rng = np.random.default_rng(seed)
    splits = random_splits(program, rng) if seed else {}
    graph = lower(program, splits)
    inputs = random_inputs(graph, rng)
    expected = plain(**inputs)
    assert_same(run_graph(graph, inputs), expected)
    for _ in range(2):
        assert_same(run_graph(graph, inputs, order=random_order(graph, rng)), expected)


def test_the_splits_of_these_tests_are_uneven_and_partial():
    """The test above is about something: blocks of one tensor differ, sums are partial."""
    graph = lower(product_chain()[0], {"xy": (3, 4, 5), "xyz": (2, 3, 4), "out": (3, 2)})
    shapes = {
        kernel.output_shape
        for kernel, name in zip(graph.ops.kernels, graph.ops.names, strict=True)
        if kernel is not None and name.startswith("xy[")
    }
    assert shapes == {(1, 1), (1, 2), (2, 1), (2, 2)}
    formations = [kernel for kernel in graph.ops.kernels if "formation" in kernel.expression]
    assert {len(kernel.operand_shapes) for kernel in formations} == {4, 5}


# --- Memory, devices, operands --------------------------------------------------------------------


def test_results_are_freed_after_their_last_reader(monkeypatch):
    b = Builder()
    tensor = b.input("x", (4, 4))
    for step in range(6):
        tensor = b.op(f"step{step}", "ij->ij:add(x0,1.0)", tensor)
    graph = lower(b.program(), {})
    alive: list[weakref.ref] = []
    high = []

    def watched(kernel, reads, pieces, *, device):
        high.append(sum(one() is not None for one in alive))
        operands = assemble(kernel, reads, pieces, device=device)
        alive.extend(weakref.ref(one) for one in operands)
        return operands

    monkeypatch.setattr("doppler.executor.reference.assemble", watched)
    run_graph(graph, {"x": torch.zeros(4, 4)})
    # The input stays, the result of the op before is being read.
    assert max(high) <= 2


def test_inputs_are_not_changed_and_results_are_no_views_of_them():
    b = Builder()
    x = b.input("x", (4, 3))
    b.select("all", (4, 3), (x,), [Piece(0, ((0, 4), (0, 3)), (0, 0))])
    graph = lower(b.program(), {})
    given = torch.arange(12.0).reshape(4, 3)
    result = run_graph(graph, {"x": given})["all"]
    result += 1
    assert torch.equal(given, torch.arange(12.0).reshape(4, 3))


def test_cut_takes_views_and_assemble_copies_only_what_is_in_pieces():
    x = torch.arange(20.0).reshape(4, 5)
    assert cut(x, ((0, 4), (0, 5))) is x
    part = cut(x, ((1, 3), (2, 5)))
    assert torch.equal(part, x[1:3, 2:5])
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()

    program, _ = masked()
    graph = lower(program, {})
    v = graph.ops.names.index("both[0,0]")
    pieces = [torch.full((6, 5), 1.0), torch.full((6, 5), 2.0)]
    (operand,) = assemble(graph.ops.kernels[v], graph.ops.reads[v], pieces)
    assert torch.equal(operand, torch.cat(pieces, dim=1))
    v = graph.ops.names.index("part[0,0,0]")
    piece = torch.ones(2, 3, 5)
    (operand,) = assemble(graph.ops.kernels[v], graph.ops.reads[v], [piece])
    assert operand is piece


def test_an_operand_that_nothing_covers_is_zero():
    program, _ = masked()
    graph = lower(program, {"padded": (4, 1)})
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has set with NaN
    try:
        assert torch.empty(2).isnan().all()
        empty, partial = (graph.ops.names.index(f"padded[{row},0]") for row in (0, 2))
        assert graph.ops.reads[empty] == ()
        (operand,) = assemble(graph.ops.kernels[empty], (), [])
        assert torch.equal(operand, torch.zeros(2, 14))
        piece = torch.ones(2, 6)
        (operand,) = assemble(graph.ops.kernels[partial], graph.ops.reads[partial], [piece])
        assert torch.equal(operand, torch.nn.functional.pad(piece, (2, 6)))
    finally:
        torch.use_deterministic_algorithms(False)


# --- Inputs ---------------------------------------------------------------------------------------


def test_random_inputs_repeat_with_the_seed_and_keep_the_scale():
    b = Builder()
    x, w = b.input("x", (64, 400), "f16"), b.input("w", (400, 4, 50), "f16")
    b.input("v", (200, 8), "f16")
    b.op("h", "ij,jkl->ikl", x, w)
    graph = lower(b.program(), {"h": (2, 2, 1, 3)})
    one, same, other = (random_inputs(graph, np.random.default_rng(s)) for s in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["x"], other["x"])
    assert not torch.equal(one["x"][:1, :8], one["v"][:1])
    assert one["w"].dtype == torch.float16
    result = run_graph(graph, one)["h"]
    assert result.float().std().item() == pytest.approx(1, rel=0.1)
    # The left operand is data, the right one is scaled by the square root of its 400 rows.
    assert one["x"].float().std().item() == pytest.approx(1, rel=0.1)
    assert one["w"].float().std().item() == pytest.approx(1 / 20, rel=0.1)


def test_a_missing_or_unfit_input_is_named():
    program, _ = product_chain()
    graph = lower(program, {})
    inputs = random_inputs(graph, np.random.default_rng(0))
    with pytest.raises(InputError, match="graph 'test': input 'y' is not given"):
        run_graph(graph, {name: value for name, value in inputs.items() if name != "y"})
    with pytest.raises(InputError) as error:
        run_graph(graph, {**inputs, "y": torch.zeros(6, 7)})
    assert str(error.value) == (
        "graph 'test': input 'y' has shape (6, 7) and dtype torch.float32 "
        "instead of (7, 6) and torch.float32"
    )
    with pytest.raises(InputError, match=r"input 'z' has shape .* and dtype torch.float64 instead"):
        run_graph(graph, {**inputs, "z": inputs["z"].double()})


def test_graphs_that_do_not_say_what_they_compute_are_refused():
    with pytest.raises(InputError) as error:
        run_graph(graph_of([1, 1], [(0, 1, 4)]), {})
    assert str(error.value) == (
        "graph 'test' cannot be executed: it does not say what its ops compute"
    )


def test_a_result_that_stays_partial_is_named():
    b = Builder()
    b.op("xy", "ij,jk->ik", b.input("x", (5, 7)), b.input("y", (7, 6)))
    bare = Program(name="bare", parameters={}, nodes=tuple(b.nodes), given_splits={})
    whole = lower(bare, {"xy": (2, 3, 1)})
    inputs = random_inputs(whole, np.random.default_rng(0))
    assert_same(run_graph(whole, inputs), {"xy": inputs["x"] @ inputs["y"]})
    with pytest.raises(InputError) as error:
        run_graph(lower(bare, {"xy": (1, 1, 2)}), inputs)
    assert str(error.value) == (
        "graph 'bare': the blocks of output 'xy' are partial results: no formation adds them up"
    )


def test_the_executable_graph_of_the_format_description_runs(tmp_path):
    text = (REPOSITORY / "docs" / "formats.md").read_text()
    section = text.split("### Graphs that can be executed")[1]
    (tmp_path / "next.json").write_text(section.split("```")[1])
    x = torch.arange(4.0)
    results = run_graph(load_graph(tmp_path / "next.json"), {"x": x})
    assert torch.equal(results["next"], x + 1)
    for name in FUNCTIONS:
        assert name in DTYPES or f"`{name}`" in section
