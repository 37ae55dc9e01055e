from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from digraphs import as_digraph
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import published_graph
from programs import random_splits

from doppler.einsum import Input, load_workload, lower, parse_program
from doppler.executor import run_graph
from doppler.graph import load_graph
from doppler.support.errors import InputError

ROOT = Path(__file__).parents[2]
CHAINMM = ROOT / "workloads" / "chainmm.einsum"


@pytest.fixture(scope="module")
def chainmm():
    return load_workload(program=str(CHAINMM))


def level_widths(graph) -> list[int]:
    return [len(level) for level in nx.topological_generations(as_digraph(graph))]


def test_chainmm_has_the_structure_of_the_paper(chainmm):
    assert (chainmm.name, chainmm.num_ops, chainmm.num_edges) == ("chainmm", 76, 80)
    assert len(chainmm.inputs) == 36
    assert Counter(chainmm.ops.kinds) == {"matmul": 48, "elementwise": 8, "formation": 20}
    assert level_widths(chainmm) == [32, 12, 16, 8, 8]
    digraph = as_digraph(chainmm)
    assert Counter(d for _, d in digraph.in_degree()) == {0: 32, 1: 16, 2: 24, 4: 4}
    assert Counter(d for _, d in digraph.out_degree()) == {0: 8, 1: 64, 4: 4}


def test_the_ids_of_chainmm_are_the_published_ones(chainmm):
    # The splits given and the construction order are theirs: even the ids agree.
    published = load_graph(published_graph("gdp_chain_mm_112nodes.txt"))
    ours, theirs = (nx.DiGraph(as_digraph(graph)) for graph in (chainmm, published))
    assert set(ours.edges) == set(theirs.edges)
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
    assert inputs.boxes[block] == ((5000, 10_000), (5000, 7500))


def test_kernels_of_chainmm(chainmm):
    names, kernels, reads = chainmm.ops.names, chainmm.ops.kernels, chainmm.ops.reads
    place = names.index("CDE[3,0,1]")
    matmul = kernels[place]
    assert matmul.expression == "ij,jk->ik"
    assert matmul.operand_shapes == ((2500, 5000), (5000, 5000))
    assert (matmul.operand_dtypes, matmul.dtype) == (("f32", "f32"), "f32")
    assert matmul.output_shape == (2500, 5000)
    assert chainmm.ops.boxes[place] == ((7500, 10_000), (0, 5000))
    first, second = reads[place]
    assert (first.operand, first.from_input) == (0, True)
    assert chainmm.inputs.names[first.source] == "C[3,1]"
    assert (second.operand, second.from_input) == (1, False)
    assert names[second.source] == "DE.formation[1,0]"
    place = names.index("AB.formation[0,1]")
    assert kernels[place].expression == "formation:add"
    assert kernels[place].operand_shapes == ((2500, 5000),) * 2
    assert [names[read.source] for read in reads[place]] == ["AB[0,1,0]", "AB[0,1,1]"]
    assert kernels[names.index("Y[0,0]")].expression == "ik,ik->ik:add(x0,x1)"


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


def test_a_selection_reads_what_it_shows():
    graph = load_text(
        """
        C[i, k] = A[i, k] + B[i, k] split i=4
        S[i, k] = select C[i=3:7, k] split i=2
        J[i, k] = concat(i) S[i, k], A[i, k] split i=3
        """,
        shape="8, 3",
    )
    names, edges = graph.ops.names, graph.edges
    into = {
        name: {
            names[u]: size / 12
            for u, v, size in zip(edges.src, edges.dst, edges.bytes, strict=True)
            if names[v] == name
        }
        for name in names
    }
    # Rows 3:5 and 5:7 of C, whose blocks have 2 rows each.
    assert into["S[0,0]"] == {"C[1,0]": 1, "C[2,0]": 1}
    assert into["S[1,0]"] == {"C[2,0]": 1, "C[3,0]": 1}
    assert into["J[0,0]"] == {"S[0,0]": 2, "S[1,0]": 2}
    assert into["J[1,0]"] == into["J[2,0]"] == {}


def test_pairs_stay_together():
    graph = load_text(
        """
        Z[i, c] = complex A[i, k] split c=3
        Y[i, k] = real Z[i, c] split k=3
        T[i, k] = Y[i, k] + B[i, k]
        """,
        shape="2, 14",
    )
    # 7 pairs are split 2, 2, 3, on both sides.
    assert [kernel.output_shape for kernel in graph.ops.kernels[:6]] == [
        (2, 2), (2, 2), (2, 3), (2, 4), (2, 4), (2, 6),
    ]  # fmt: skip
    assert [kernel.operand_shapes for kernel in graph.ops.kernels[:3]] == [
        ((2, 4),), ((2, 4),), ((2, 6),),
    ]  # fmt: skip
    assert list(graph.edges.bytes[:3]) == [2 * 2 * 8, 2 * 2 * 8, 2 * 3 * 8]
    with pytest.raises(InputError, match=r"'k', which has 14 elements in groups of 2, into 8"):
        load_text("Z[i, c] = complex A[i, k]\nY[i, k] = real Z[i, c] split k=8", shape="2, 14")


def test_opaque_ops_read_their_operands_whole():
    graph = load_text(
        """
        S[i, j] = A[i, j] + B[i, j] split i=2 j=2
        L[i, j] = cholesky S[i, j]
        X[i, k] = solve L[i, j], S[j, k]
        """,
        shape="6, 6",
    )
    assert graph.ops.kinds[4:] == ("cholesky", "solve")
    assert list(graph.ops.flops[4:]) == [6**3 // 3, 6**3]
    assert list(graph.ops.read_bytes[4:]) == [36 * 4, 2 * 36 * 4]
    assert [kernel.expression for kernel in graph.ops.kernels[4:]] == ["cholesky", "solve"]
    assert list(graph.edges.dst) == [4] * 4 + [5] * 5


def test_splits_given_to_lower_are_checked():
    program = parse_program("program p\ninput A[4, 6] f32\nY[i, k] = A[i, k]")
    assert lower(program, {"Y": (4, 2)}).num_ops == 8
    assert lower(program, {}).num_ops == 1
    with pytest.raises(InputError, match="op 'Y': 1 splits given for its 2 dimensions"):
        lower(program, {"Y": (4,)})
    with pytest.raises(InputError, match="op 'Y': cannot split index 'i', which has 4 elements"):
        lower(program, {"Y": (5, 1)})
    with pytest.raises(InputError, match="splits for 'Z', which is not an op"):
        lower(program, {"Z": (1, 1)})


def load_text(ops: str, shape: str):
    program = parse_program(f"program p\ninput A[{shape}] f32\ninput B[{shape}] f32\n{ops}")
    return lower(program, program.given_splits)


TEXT = """
program odd
param n: paper=1
input A[n, 9] f64
input B[9, 11] f64
input C[n, 11] f64
fill cut[11, 11] f64 lower 1 / 2 else 0
AB[i, k] = sum(j) A[i, j] * B[j, k]
S[k, i] = (AB[i, k] - 1) / 3 + C[i, k] * C[i, k]
Y[k, l] = sum(i) S[k, i] * C[i, l]
M[k, l] = Y[k, l] * cut[l, k]
T[l] = max(k) M[k, l]
R[k, l, m=3] = exp(-abs(M[k, l] - T[l]))
E[k, l, m=3] = Y[k, l] / 99
F[k, l, m] = concat(k) E[k, l, m], R[k, l, m]
G[k, l, m] = select F[k=5:18, l=2:9, m]
P[l, m] = prod(k) 1 + G[k, l, m]
X[p, l, m, q] = squeeze P[l, m]
"""


@settings(max_examples=40)
@given(n=st.integers(5, 23), seed=st.integers(0, 1000))
def test_blocks_compute_what_the_program_says(n, seed):
    rng = np.random.default_rng(seed)
    program = parse_program(TEXT, params={"n": n})
    graph = lower(program, random_splits(program, rng, max_parts=5))
    check_that_reads_are_covered(graph)

    a, b, c = rng.normal(size=(n, 9)), rng.normal(size=(9, 11)), rng.normal(size=(n, 11))
    y = ((a @ b - 1) / 3 + c * c).T @ c
    m = y * np.tri(11).T / 2
    f = np.concatenate([y / 99, np.exp(-abs(m - m.max(axis=0)))])
    x = (1 + f[5:18, 2:9]).prod(axis=0)
    inputs = {name: torch.tensor(array) for name, array in zip("ABC", (a, b, c), strict=True)}
    (result,) = run_graph(graph, inputs).values()
    np.testing.assert_allclose(result.numpy(), np.tile(x[None, :, None, None], (1, 1, 3, 1)))


def check_that_reads_are_covered(graph) -> None:
    """What flows into an op, over edges and from input blocks, is exactly what it reads."""
    arrived_V = np.bincount(graph.edges.dst, weights=graph.edges.bytes, minlength=graph.num_ops)
    for size, consumers in zip(graph.inputs.bytes, graph.inputs.consumers, strict=True):
        arrived_V[list(consumers)] += size
    np.testing.assert_array_equal(arrived_V, graph.ops.read_bytes)


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
