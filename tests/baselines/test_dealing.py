"""Dealing: as many blocks of each node to every device, where what they read is."""

from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.baselines import Dealing
from doppler.baselines.dealing import has_blocks
from doppler.cluster import preset
from doppler.graph import DataflowGraph, synthetic
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving

PARTS, LAYERS = 4, 6


def blocks(*, pinned: int = -1, group: tuple[int, ...] = ()) -> DataflowGraph:
    """Layers of three nodes of four blocks: columns of all, rows of their own, sums of all."""
    node, block, edges = [], [], []
    for layer in range(LAYERS):
        first = 3 * PARTS * layer
        for stage in range(3):
            for part in range(PARTS):
                v = first + PARTS * stage + part
                node.append(3 * layer + stage)
                block.append(part)
                begin = first + PARTS * (stage - 1)
                sources = [begin + part] if stage == 1 else range(begin, begin + PARTS)
                edges += [(source, v) for source in sources if source >= 0]
    num = len(node)
    pinned_V, group_V = np.full(num, -1), np.full(num, -1)
    pinned_V[0] = pinned
    group_V[list(group)] = 3
    src, dst = zip(*edges, strict=True)
    return DataflowGraph(
        name="blocks",
        ops=Ops.make(
            flops=np.full(num, 2.0),
            output_bytes=np.ones(num),
            node=node,
            block=block,
            pinned=pinned_V,
            group=group_V,
        ),
        edges=Edges.make(src=src, dst=dst, bytes=np.ones(len(src))),
        inputs=Inputs.make(),
    )


def dealt(problem: Problem, num: int = 1) -> np.ndarray:
    return Dealing(evaluations=num).draw(problem, num, np.random.default_rng(0))[0]


def test_equal_numbers_of_all_nodes_meet():
    graph = blocks()
    assert (dealt(build(graph, cluster_of([1.0] * PARTS)))[0] == graph.ops.block).all()


def test_blocks_go_where_what_they_read_is_whatever_their_number():
    graph = blocks()
    turned_V = np.where(graph.ops.node % 3 == 1, PARTS - 1 - graph.ops.block, graph.ops.block)
    turned = replace(graph, ops=replace(graph.ops, block=turned_V))
    assert (dealt(build(turned, cluster_of([1.0] * PARTS)))[0] == graph.ops.block).all()


def test_nodes_of_fewer_parts_than_devices_are_spread_by_load():
    problem = build(blocks(), cluster_of([1.0] * 8, bytes_per_s=np.inf))
    device_V = dealt(problem)[0]
    for node in np.unique(problem.graph.ops.node):
        assert len(set(device_V[problem.graph.ops.node == node])) == PARTS
    assert set(device_V) == set(range(8))


def test_on_hosts_also_one_host_and_all_in_turn():
    hosts = {"hosts": (0, 0, 0, 0, 1, 1, 1, 1), "nics": 1, "nic_bytes_per_s": 0.25}
    problem = build(blocks(), cluster_of([1.0] * 8, bytes_per_s=1.0, **hosts))
    device_BV = dealt(problem, 3)
    assert device_BV[1].max() < 4
    half = problem.num_ops // 2
    assert (device_BV[2] // 4 == (np.arange(problem.num_ops) >= half)).all()
    assert (device_BV[2] % 4 == problem.graph.ops.block).all()


@pytest.mark.parametrize("group", [(), (5, 18, 33)])
def test_pins_and_groups_hold(group):
    problem = build(blocks(pinned=2, group=group), cluster_of([1.0] * PARTS))
    device_V = dealt(problem)[0]
    assert device_V[0] == 2
    assert problem.allows(device_V[None])[0]


def test_inputs_are_spread_over_the_run_where_room_is_short():
    """All ops of a layer read one input: a device has room for four of the six."""
    layers = np.arange(3 * PARTS * LAYERS).reshape(LAYERS, -1)
    inputs = Inputs.make(
        names=[str(one) for one in range(LAYERS)], bytes=[120.0] * LAYERS, consumers=layers.tolist()
    )
    graph = replace(blocks(), inputs=inputs)
    wide, tight = (
        build(graph, cluster_of([1.0] * PARTS, memory_bytes=room)) for room in (1e6, 500.0)
    )
    with WorkConserving().open(tight) as session:
        free, fits = (
            session.measure(*Dealing(evaluations=1).draw(problem, 1, np.random.default_rng(0)))
            for problem in (wide, tight)
        )
    assert not free.feasible[0]
    assert fits.feasible[0]


def test_only_graphs_of_split_nodes_have_blocks():
    problem = build(blocks(), cluster_of([1.0] * PARTS))
    assert has_blocks(problem)
    graph = synthetic(family="layered", num_ops=80, transfer_ratio=1.0, seed=1)
    assert not has_blocks(build(graph, preset(name="h100x8")))


def test_ops_without_edges_are_dealt_to_all_devices():
    graph = graph_of([1.0] * 8)
    ops = replace(graph.ops, node=np.arange(8))
    problem = build(replace(graph, ops=ops), cluster_of([1.0] * 4))
    with WorkConserving().open(problem) as session:
        found = Dealing(evaluations=1).place(session, np.random.default_rng(0))
    assert np.bincount(found.placement.device, minlength=4).tolist() == [2, 2, 2, 2]
