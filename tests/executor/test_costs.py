"""The costs of lowered graphs are those of what their kernels do."""

import math

import numpy as np
import pytest
from problems import REPOSITORY
from programs import PROGRAMS, product_chain, random_order, random_splits, rotation, softmax

from doppler.einsum import load_program, lower
from doppler.einsum.program import Program
from doppler.executor import assemble, random_inputs, run_graph
from doppler.graph.scalar import DTYPES

WORKLOADS = sorted(path.stem for path in (REPOSITORY / "workloads").glob("*.einsum"))


def workload(name: str) -> Program:
    return load_program(f"workloads/{name}.einsum", preset="small")


SOURCES = {
    **{make.__name__: lambda make=make: make()[0] for make in PROGRAMS},
    **{name: lambda name=name: workload(name) for name in WORKLOADS},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_bytes_are_those_of_the_slices_that_kernels_take(make, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    program = make()
    graph = lower(program, random_splits(program, rng))
    taken: dict[tuple[int, int], dict[tuple, int]] = {}
    read_bytes = np.zeros(graph.num_ops)
    output_bytes = np.zeros(graph.num_ops)
    order = random_order(graph, rng)
    running = iter(order)

    def watched(kernel, reads, pieces, *, device):
        v = next(running)
        assert graph.ops.kernels[v] is kernel
        for read, piece in zip(reads, pieces, strict=True):
            size = piece.numel() * piece.element_size()
            read_bytes[v] += size
            if not read.from_input:
                taken.setdefault((read.source, v), {})[read.box] = size
        output_bytes[v] = math.prod(kernel.output_shape) * DTYPES[kernel.dtype]
        return assemble(kernel, reads, pieces, device=device)

    monkeypatch.setattr("doppler.executor.reference.assemble", watched)
    run_graph(graph, random_inputs(graph, rng), order=order)
    carried: dict[tuple[int, int], list[float]] = {}
    for src, dst, size in zip(
        graph.edges.src.tolist(), graph.edges.dst.tolist(), graph.edges.bytes, strict=True
    ):
        carried.setdefault((src, dst), []).append(size)
    assert carried.keys() == taken.keys()
    for pair, sizes in carried.items():
        assert sorted(sizes) == sorted(taken[pair].values())
    np.testing.assert_array_equal(read_bytes, graph.ops.read_bytes)
    np.testing.assert_array_equal(output_bytes, graph.ops.output_bytes)
    assert graph.inputs.bytes.sum() == sum(
        math.prod(tensor.shape) * DTYPES[tensor.dtype]
        for number, tensor in enumerate(graph.tensors)
        if number in graph.inputs.node
    )


def test_flops_are_counted_by_hand():
    """The analytic counts, whatever the splits; a formation adds up what a split left partial."""
    program, _ = softmax()
    n, m = 6, 9
    once = {
        "scaled": n * m,
        "high": n * m,
        "e": 2 * n * m,
        "total": n * m,
        "out": n * m,
        "low": n * m,
    }
    for splits in ({}, {"high": (3, 4), "total": (2, 5), "low": (2, 3), "e": (4, 2)}):
        graph = lower(program, splits)
        flops = dict.fromkeys([node.name for node in program.nodes], 0.0)
        for number, value in zip(graph.ops.node.tolist(), graph.ops.flops, strict=True):
            flops[program.nodes[number].name] += value
        assert {name: flops[name] for name in once} == once
        partials = {"high": 4, "total": 5, "low": 6} if splits else {}
        for name in ("high", "total", "low"):
            size = 1 if name == "low" else n
            assert flops[f"{name}.formation"] == (partials.get(name, 1) - 1) * size
    chain, _ = product_chain()
    graph = lower(chain, {"xy": (2, 2, 3)})
    products = 2 * 5 * 6 * 7 + 2 * 5 * 5 * 6
    assert graph.ops.flops.sum() == products + 2 * 5 * 6 + 5 * 5
    turned, _ = rotation()
    complex_flops = 2 * 5 * 4 * (6 + 1)
    assert lower(turned, {}).ops.flops.sum() == complex_flops + 2 * 5 * 8 * 3


def llama_products(seq: int, model: int, ffn: int) -> int:
    """Four projections, three of the feed-forward part, scores and what is seen by them."""
    return 2 * seq * model * (4 * model + 3 * ffn) + 2 * 2 * seq * seq * model


PRODUCTS = {
    "chainmm": 3 * 2 * 512**3,
    "ffnn": 2 * 2048 * 1024 * (256 + 256),
    "llama_block": llama_products(128, 512, 1408),
    "llama_layer": llama_products(128, 512, 1408) + 2 * 512 * 2048,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PRODUCTS)
def test_flops_of_matrix_products_are_the_textbook_count(name, seed):
    program = workload(name)
    splits = random_splits(program, np.random.default_rng(seed), max_parts=3) if seed else {}
    graph = lower(program, splits)
    is_product_V = np.array([kind == "matmul" for kind in graph.ops.kinds])
    assert graph.ops.flops[is_product_V].sum() == PRODUCTS[name]
