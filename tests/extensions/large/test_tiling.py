"""Layers: which ops are the same op of other layers, and all placed as a few of them."""

from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of

import doppler
from doppler.cluster import preset
from doppler.einsum import load_program, lower
from doppler.einsum.differentiation import training_program
from doppler.extensions.large import AnnealWindows, TileLayers, windows
from doppler.extensions.large.few_layers import few_layers
from doppler.extensions.large.layers import find_layers
from doppler.extensions.large.windows import scheduled
from doppler.extensions.memory import MODES
from doppler.graph import DataflowGraph, synthetic
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.problem import Placement, Problem, build, topological_priority
from doppler.search import Budget, Evaluator, InParts, search, steps_of, suited
from doppler.simulator import WorkConserving, open_estimates

HOSTS = {"hosts": (0, 0, 1, 1), "nics": 1, "nic_bytes_per_s": 0.25}
ROWS = 4


def stack(
    num: int = 12, *, odd: int | None = None, group=(), pinned=(), weight_bytes: float = 0.0
) -> DataflowGraph:
    """Two ops, layers of nine, two ops; four chains that meet at the end of each layer.

    odd: the layer of which one op takes longer. group: (layer, op) pairs on one device. pinned:
    ops of all layers that are on device 1. weight_bytes: of an input of each op.
    """
    flops, edges = [3.0, 1.0], [(0, 1, 1.0)]
    for layer in range(num):
        begin, before = 2 + 9 * layer, 1 + 9 * layer
        flops += [2.0, 3.0, 5.0, 4.0, 6.0, 1.0, 2.0, 7.0, 3.0]
        flops[-4] += layer == odd
        for row in range(ROWS):
            edges.append((before, begin + row, 1.0))
            edges.append((begin + row, begin + ROWS + row, 2.0))
            edges.append((begin + ROWS + row, begin + 8, 1.0))
    end = len(flops)
    edges += [(end - 1, end, 1.0), (0, end + 1, 1.0), (end, end + 1, 1.0)]
    flops += [4.0, 2.0]
    group_V, pinned_V = np.full(len(flops), -1), np.full(len(flops), -1)
    group_V[[2 + 9 * layer + op for layer, op in group]] = 7
    pinned_V[[2 + 9 * layer + op for layer in range(num) for op in pinned]] = 1
    read = range(len(flops)) if weight_bytes else ()
    src, dst, size = zip(*edges, strict=True)
    return DataflowGraph(
        name="stack",
        ops=Ops.make(flops=flops, output_bytes=np.ones(len(flops)), group=group_V, pinned=pinned_V),
        edges=Edges.make(src=src, dst=dst, bytes=size, region=np.array(size, np.int64) - 1),
        inputs=Inputs.make(
            names=[str(v) for v in read],
            bytes=[weight_bytes for _ in read],
            consumers=[[v] for v in read],
        ),
    )


def stacked(**options) -> Problem:
    return build(stack(**options), cluster_of([1.0] * 4, bytes_per_s=1.0))


def tiled(problem: Problem, *, evaluations: int = 4, start: bool = True) -> Evaluator:
    """What the step finds, from all ops on their first device."""
    few = few_layers(problem)
    assert few is not None
    step = TileLayers(few=few, steps=steps_of("auto"), share=None)
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        if start:
            able_VD = np.isfinite(problem.arrays.op_seconds)
            best.confirm(Placement.make(problem, able_VD.argmax(axis=1)))
        search([step], best, Budget(evaluations=evaluations), np.random.default_rng(0))
        assert session.evaluations == best.evaluations == 1 + start
    return best


def test_layers_are_found_by_what_ops_take_and_read():
    found = find_layers(stacked())
    assert found is not None
    assert (found.first, found.last) == (1, 11)  # layer 0 reads what is before all layers
    assert found.op.shape == (9, 12)
    assert (np.diff(found.op, axis=1) == 9).all()
    assert sorted(found.op.ravel()) == list(range(2, 2 + 9 * 12))


def test_a_layer_that_differs_ends_what_is_alike():
    found = find_layers(stacked(num=16, odd=3))
    assert found is not None
    assert found.last - found.first + 1 == 11
    assert found.op[:, found.first].min() > 2 + 9 * 3 + 5  # behind that op
    assert find_layers(stacked(odd=5)) is None
    assert find_layers(stacked(num=4)) is None


def test_graphs_without_layers_have_none():
    cluster = preset(name="h100x8")
    for family in ("layered", "stencil", "tree", "map_reduce", "fork_join", "butterfly"):
        graph = synthetic(family=family, num_ops=600, transfer_ratio=1.0, seed=1)
        assert find_layers(build(graph, cluster)) is None


def test_copies_that_do_not_follow_each_other_are_no_layers():
    """Side by side they are better kept on a device each than spread alike."""
    graph = stack(num=20)
    edges, ends = graph.edges, 2 + 9 * np.arange(1, 20)
    apart = ~np.isin(edges.src, ends - 1)
    several = Edges.make(
        src=edges.src[apart],
        dst=edges.dst[apart],
        bytes=edges.bytes[apart],
        region=edges.region[apart],
    )
    problem = build(replace(graph, edges=several), cluster_of([1.0] * 4, bytes_per_s=1.0))
    assert find_layers(problem) is None


@pytest.mark.parametrize("training", [False, True])
def test_ops_of_one_place_are_called_alike_and_share_a_layer(training):
    path, params = "workloads/llama_layer.einsum", {"layers": 10}
    program = load_program(path, params=params, training=training)
    if training:
        program = training_program(program, learning_rate=1e-3)
    problem = build(lower(program, {}), preset(name="h100x8"))
    found = find_layers(problem)
    assert found is not None
    names = np.array([node.name for node in program.nodes])[problem.graph.ops.node]
    numbers = [[int(one) for one in name.split(".") if one.isdecimal()] for name in names]
    first = found.op[:, found.first]
    for layer in range(found.first, found.last + 1):
        told = [min(numbers[v]) for v in found.op[:, layer]]  # d_out.2.x_f32.3 is of both
        assert max(told) - min(told) <= 1  # wherever in a layer they are cut
        later = {
            one - other
            for v, w in zip(found.op[:, layer], first, strict=True)
            for one, other in zip(numbers[v], numbers[w], strict=True)
        }
        assert later in ({layer - found.first}, {found.first - layer})  # backward, or forward
    bare = np.array(["".join(c for c in name if not c.isdecimal()) for name in names])
    alike_PL = bare[found.op[:, found.first : found.last + 1]]
    assert (alike_PL == alike_PL[:, :1]).all()


@pytest.mark.parametrize("num", [8, 20])
def test_few_layers_take_what_they_take_of_the_whole(num):
    """All on one device: the few layers in a row, and the whole in the order that they tell."""
    problem = stacked(num=num)
    few = few_layers(problem)
    assert few is not None
    assert few.problem.num_ops == 4 + 9 * 4
    one = Placement.make(few.problem, np.zeros(few.problem.num_ops, np.int64))
    with open_estimates(few.problem) as estimates:
        timed = scheduled(estimates, one.device, one.priority)
    assert timed.seconds == 10.0 + 33.0 * 4
    device, priority = few.stretched(timed)
    assert (priority == topological_priority(problem)).all()
    with WorkConserving().open(problem) as session:
        assert session.measure(device[None], priority[None]).seconds[0, 0] == 10.0 + 33.0 * num


def test_all_layers_are_placed_alike_and_better_than_any_device_alone():
    problem = stacked(num=20)
    best = tiled(problem)
    found = find_layers(problem)
    assert found is not None and best.placement is not None
    device_PL = best.placement.device[found.op]
    assert (device_PL == device_PL[:, :1]).all()
    assert best.found.source == "layers"
    assert best.seconds < 0.75 * problem.arrays.op_seconds[:, 0].sum()
    edges, priority = problem.graph.edges, best.placement.priority
    assert (priority[edges.src] < priority[edges.dst]).all()


@pytest.mark.parametrize("hosts", [{}, HOSTS])
@pytest.mark.parametrize("group", [(), [(3, 1), (8, 6)], [(0, 0), (6, 4), (11, 8)]])
def test_groups_stay_together_and_pins_where_they_are(hosts, group):
    graph = stack(group=group, pinned=[2, 7])
    problem = build(graph, cluster_of([1.0] * 4, bytes_per_s=1.0, **hosts))
    for start in (True, False):
        best = tiled(problem, start=start)
        assert best.placement is not None and np.isfinite(best.seconds)
        assert problem.allows(best.placement.device[None])[0]


def test_what_does_not_fit_is_not_kept():
    """Weights of all layers count: each device has room for little more than a third."""
    graph = stack(num=20, weight_bytes=10.0)
    for room in (650.0, 1000.0):
        problem = build(graph, cluster_of([1.0, 0.5, 0.5, 0.5], memory_bytes=room))
        best = tiled(problem, evaluations=16, start=False)
        assert best.placement is not None
        with WorkConserving().open(problem) as session:
            device, priority = best.placement.device, best.placement.priority
            assert session.measure(device[None], priority[None]).feasible[0]


def test_only_a_simulator_that_keeps_orders_is_asked():
    problem = stacked()
    few = few_layers(problem)
    assert few is not None
    step = TileLayers(few=few, steps=steps_of("auto"))
    for system in (WorkConserving(queue="fifo"), MODES["offload"].applied(WorkConserving())):
        with system.open(problem) as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            step.search(best, 8, np.random.default_rng(0))
            assert best.evaluations == 0


def test_searches_of_large_graphs_of_layers_tile_before_windows(monkeypatch):
    monkeypatch.setattr(windows, "_LEAST_OPS", 100)
    problem, steps = stacked(num=20), steps_of("auto")
    kinds = [type(step) for step in suited(steps, problem)]
    assert kinds[1:3] == [TileLayers, AnnealWindows]
    tile = suited(steps, problem)[1]
    assert isinstance(tile, TileLayers)
    assert [step.share for step in tile.steps if isinstance(step, InParts)] == [0.01]
    without = build(
        synthetic(family="layered", num_ops=200, transfer_ratio=1.0, seed=1), preset(name="h100x8")
    )
    assert suited(steps, without) == AnnealWindows.within(steps, without)
    full = [replace(steps[0], share=0.5), *steps[1:]]
    assert TileLayers not in [type(step) for step in suited(full, problem)]
    rows = [doppler.place(problem.graph, cluster=problem.cluster, evaluations=60) for _ in range(2)]
    assert rows[0].makespan_s == rows[1].makespan_s
    assert rows[0].evaluations == 60
