import os
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.einsum import Einsum, Formation, Input, load_workload, lower, parse_program
from doppler.errors import InputError
from doppler.graph import load_graph, to_networkx

ROOT = Path(__file__).parents[2]
CHAINMM = ROOT / "workloads" / "chainmm.einsum"
GRAPHS = Path(os.environ.get("DOPPLER_GRAPHS", ROOT.parent / "shared" / "graphs"))
PUBLISHED = GRAPHS / "gdp_chain_mm_112nodes.txt"


@pytest.fixture(scope="module")
def chainmm():
    return load_workload(program=str(CHAINMM))


def level_widths(graph) -> list[int]:
    return [len(level) for level in nx.topological_generations(to_networkx(graph))]


def test_chainmm_has_the_structure_of_the_paper(chainmm):
    assert (chainmm.name, chainmm.num_ops, chainmm.num_edges) == ("chainmm", 76, 80)
    assert len(chainmm.inputs) == 36
    assert Counter(chainmm.ops.kinds) == {"matmul": 48, "elementwise": 8, "formation": 20}
    assert level_widths(chainmm) == [32, 12, 16, 8, 8]
    digraph = to_networkx(chainmm)
    assert Counter(d for _, d in digraph.in_degree()) == {0: 32, 1: 16, 2: 24, 4: 4}
    assert Counter(d for _, d in digraph.out_degree()) == {0: 8, 1: 64, 4: 4}


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published graphs are not here")
def test_chainmm_is_the_published_graph(chainmm):
    published = load_graph(PUBLISHED)
    ours, theirs = to_networkx(chainmm), to_networkx(published)
    for digraph in (ours, theirs):
        for _, data in digraph.nodes(data=True):
            data["formation"] = data["kind"] == "formation"
    matches = nx.algorithms.isomorphism.categorical_node_match("formation", None)
    assert nx.is_isomorphic(nx.DiGraph(ours), nx.DiGraph(theirs), node_match=matches)
    # The construction order is theirs too: even the ids agree.
    assert set(nx.DiGraph(ours).edges) == set(nx.DiGraph(theirs).edges)
    assert [kind == "formation" for kind in chainmm.ops.kinds] == [
        kind == "formation" for kind in published.ops.kinds
    ]


def test_chainmm_has_true_costs(chainmm):
    n = 10_000
    # DE adds 4 partials, CDE and AB add 2, and the sum adds 2 matrices: 3 + 1 + 1 + 1.
    assert chainmm.ops.flops.sum() == 3 * 2 * n**3 + 6 * n**2
    assert chainmm.inputs.bytes.sum() == 5 * n**2 * 4
    ops = {name: v for v, name in enumerate(chainmm.ops.names)}
    first = ops["DE[0,0,0]"]
    assert chainmm.ops.flops[first] == 2 * 5000 * 5000 * 2500
    assert chainmm.ops.read_bytes[first] == 2 * 5000 * 2500 * 4
    assert chainmm.ops.output_bytes[first] == 5000 * 5000 * 4
    formation = ops["DE.formation[1,0]"]
    assert chainmm.ops.flops[formation] == 3 * 5000 * 5000
    assert chainmm.ops.read_bytes[formation] == 4 * 5000 * 5000 * 4
    assert chainmm.ops.flops[ops["Y[3,1]"]] == 2500 * 5000


def test_edges_and_inputs_of_chainmm(chainmm):
    ops, edges, inputs = chainmm.ops, chainmm.edges, chainmm.inputs
    # Whole blocks flow everywhere: the splits given align.
    assert set(edges.region) == {0}
    np.testing.assert_array_equal(edges.bytes, ops.output_bytes[edges.src])
    assert inputs.names[:3] == ("A[0,0]", "A[0,1]", "A[1,0]")
    block = inputs.names.index("D[1,2]")
    assert [ops.names[v] for v in inputs.consumers[block]] == ["DE[1,0,2]", "DE[1,1,2]"]
    assert inputs.bytes[block] == 5000 * 2500 * 4


def test_kernels_of_chainmm(chainmm):
    names, kernels = chainmm.ops.names, chainmm.ops.kernels
    matmul = kernels[names.index("CDE[3,0,1]")]
    assert matmul.expression == "ij,jk->ik"
    assert matmul.operand_shapes == ((2500, 5000), (5000, 5000))
    assert matmul.output_shape == (2500, 5000)
    assert matmul.input_slices == (
        ((7500, 10_000), (5000, 10_000)),
        ((5000, 10_000), (0, 5000)),
    )
    formation = kernels[names.index("AB.formation[0,1]")]
    assert formation.expression == "formation:add"
    assert formation.input_slices == (((0, 2500), (5000, 10_000)),) * 2
    assert kernels[names.index("Y[0,0]")].expression == "add"


def test_options_of_load_workload():
    graph = load_workload(program=str(CHAINMM), name="chain", preset="small", params={"n": 40})
    assert graph.name == "chain"
    assert graph.inputs.bytes.sum() == 5 * 40 * 40 * 4
    with pytest.raises(InputError, match=r"chainmm\.einsum:13:58: cannot split index 'j'"):
        load_workload(program=str(CHAINMM), params={"n": 3})


def test_repartition_quarters():
    # 4 blocks of rows feed 16: each has 4 consumers, which read a quarter each.
    graph = load_text(
        """
        C[i, k] = A[i, k] + B[i, k] split i=4
        Y[i, k] = A[i, k] + C[i, k] split i=16
        """,
        shape="32, 5",
    )
    assert level_widths(graph) == [4, 16]
    assert set(graph.edges.bytes) == {2 * 5 * 4}
    assert len(graph.regions) == 16
    assert list(graph.edges.region[graph.edges.src == 1]) == [0, 1, 2, 3]
    # A is read whole by nobody: its blocks are the refinement of 4 and 16.
    assert Counter(name[0] for name in graph.inputs.names) == {"A": 16, "B": 4}
    assert graph.inputs.consumers[graph.inputs.names.index("A[5,0]")] == (1, 4 + 5)


def test_consumers_of_one_box_share_its_region():
    graph = load_text(
        """
        C[i, k] = A[i, k] + B[i, k] split i=2
        Y[i, j] = sum(k) C[i, k] * A[j, k] split i=2 j=3 k=2
        """,
        shape="6, 6",
    )
    own = graph.edges.src == 0
    # Block C[0,0] is cut in halves along k, and each half goes to the 3 blocks of j.
    assert Counter(graph.edges.region[own].tolist()) == {0: 3, 1: 3}
    assert set(graph.edges.bytes[own]) == {3 * 3 * 4}


def test_one_tensor_read_two_ways_is_one_edge_where_the_boxes_agree():
    graph = load_text(
        """
        C[i, k] = A[i, k] + B[i, k] split i=2 k=2
        Y[i, k] = C[i, k] + C[k, i] split i=2 k=2
        """,
        shape="6, 6",
    )
    into = {graph.ops.names[v]: int((graph.edges.dst == v).sum()) for v in range(4, 8)}
    assert into == {"Y[0,0]": 1, "Y[0,1]": 2, "Y[1,0]": 2, "Y[1,1]": 1}
    assert set(graph.ops.read_bytes[4:]) == {2 * 9 * 4}


def test_splits_given_to_lower_are_checked():
    program = parse_program("program p\ninput A[4, 6] f32\nY[i, k] = A[i, k]")
    assert lower(program, {"Y": (4, 2)}).num_ops == 8
    with pytest.raises(InputError, match="op 'Y': 0 splits given for its 2 dimensions"):
        lower(program, {})
    with pytest.raises(InputError, match="op 'Y': cannot split index 'i', which has 4 elements"):
        lower(program, {"Y": (5, 1)})


def load_text(ops: str, shape: str):
    program = parse_program(f"program p\ninput A[{shape}] f32\ninput B[{shape}] f32\n{ops}")
    return lower(program, program.given_splits)


TEXT = """
program odd
param n: paper=1
input A[n, 9] f64
input B[9, 11] f64
input C[n, 11] f64
AB[i, k] = sum(j) A[i, j] * B[j, k]
S[k, i] = AB[i, k] + C[i, k] * C[i, k]
Y[k, l] = sum(i) S[k, i] * C[i, l]
R[k] = sum(l) Y[k, l]
"""


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(5, 23),
    parts=st.lists(st.integers(1, 5), min_size=10, max_size=10),
    seed=st.integers(0, 99),
)
def test_blocks_compute_what_the_program_says(n, parts, seed):
    program = parse_program(TEXT, params={"n": n})
    splits = {"AB": parts[:3], "S": parts[3:5], "Y": parts[5:8], "R": parts[8:]}
    graph = lower(program, {name: tuple(own) for name, own in splits.items()})
    check_that_reads_are_covered(graph)

    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(size=(n, 9)), rng.normal(size=(9, 11)), rng.normal(size=(n, 11))
    y = ((a @ b) + c * c).T @ c
    tensors = run_blocks(program, graph, {"A": a, "B": b, "C": c})
    np.testing.assert_allclose(tensors["Y.formation"], y)
    np.testing.assert_allclose(tensors["R.formation"], y.sum(axis=1))


def check_that_reads_are_covered(graph) -> None:
    """What flows into an op, over edges and from input blocks, is exactly what it reads."""
    arrived_V = np.bincount(graph.edges.dst, weights=graph.edges.bytes, minlength=graph.num_ops)
    for size, consumers in zip(graph.inputs.bytes, graph.inputs.consumers, strict=True):
        arrived_V[list(consumers)] += size
    np.testing.assert_array_equal(arrived_V, graph.ops.read_bytes)


def run_blocks(program, graph, inputs) -> dict[str, np.ndarray]:
    """Run every op from its KernelSpec alone; partial results are kept apart, per block."""
    tensors = dict(inputs)
    results: list[np.ndarray] = []
    for v in range(graph.num_ops):
        node, kernel = program.nodes[graph.ops.node[v]], graph.ops.kernels[v]
        if isinstance(node, Formation):
            sources = graph.edges.src[graph.edges.dst == v]
            assert len(sources) == len(kernel.operand_shapes)
            assert all(results[u].shape == kernel.output_shape for u in sources)
            result = sum(results[u] for u in sources)
            box = kernel.input_slices[0]
            tensor = tensors.setdefault(node.name, np.full(node.shape, np.nan))
            tensor[tuple(slice(*span) for span in box)] = result
        else:
            operands = [
                tensors[program.nodes[operand].name][tuple(slice(*span) for span in box)]
                for operand, box in zip(node.operands, kernel.input_slices, strict=True)
            ]
            assert tuple(one.shape for one in operands) == kernel.operand_shapes
            result = run_kernel(kernel.expression, operands)
            if node.aggregation is None:
                box = output_box(node, kernel)
                tensor = tensors.setdefault(node.name, np.full(node.shape, np.nan))
                tensor[tuple(slice(*span) for span in box)] = result
        assert result.shape == kernel.output_shape
        results.append(result)
    return tensors


def run_kernel(expression: str, operands: list[np.ndarray]) -> np.ndarray:
    if expression == "ik,ik->ki:add(0,mul(1,1))":
        return (operands[0] + operands[1] * operands[1]).T
    notation, _, rest = expression.partition(":")
    assert rest in ("", "0:add")
    return np.einsum(notation, *operands)


def output_box(node: Einsum, kernel) -> list[tuple[int, int]]:
    """Where the result lies, from where its operands do."""
    spans = {}
    for dims, box in zip(node.operand_dims, kernel.input_slices, strict=True):
        spans |= dict(zip(dims, box, strict=True))
    return [spans[dim] for dim in range(node.output_rank)]


def test_nodes_are_numbered_by_the_program(chainmm):
    program = parse_program(CHAINMM.read_text())
    for v, name in enumerate(chainmm.ops.names):
        assert name.startswith(f"{program.nodes[chainmm.ops.node[v]].name}[")
    for i, name in enumerate(chainmm.inputs.names):
        node = program.nodes[chainmm.inputs.node[i]]
        assert isinstance(node, Input)
        assert name.startswith(f"{node.name}[")
    keys = list(zip(chainmm.ops.node.tolist(), chainmm.ops.block.tolist(), strict=True))
    assert keys == sorted(set(keys))
