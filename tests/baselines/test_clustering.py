"""Clustering: what is merged, where groups go, and how good the search is."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of, published_graph, random_problem

from doppler.baselines import Clustering, CriticalPath
from doppler.baselines.clustering import draw_clusterings, schedule_clusterings
from doppler.baselines.levels import b_levels
from doppler.cluster import preset
from doppler.graph import load_graph
from doppler.problem import Problem, build
from doppler.simulator import Published, WorkConserving
from doppler.support.errors import InputError


def grouped(
    problem: Problem, *, least_weight: float, cap: float, level=None, seed: int = 0, num: int = 1
) -> tuple[list[list[int]], list[list[int]]]:
    """Ops in the order in which they were taken, and device by op id, of each run."""
    level_V = b_levels(problem) if level is None else np.array(level, dtype=float)
    decisions = schedule_clusterings(
        problem,
        least_weight_B=np.full(num, least_weight),
        cap_B=np.full(num, cap),
        level_BV=np.tile(level_V, (num, 1)),
        rng=np.random.default_rng(seed),
    )
    device_BV = np.empty_like(decisions.device)
    np.put_along_axis(device_BV, decisions.op, decisions.device, axis=1)
    return decisions.op.tolist(), device_BV.tolist()


def expected_groups(problem: Problem, least_weight: float, cap: float) -> dict[int, set[int]]:
    """Group of each op, by merging sets in plain Python; the weights must be distinct."""
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    seconds_VD = problem.arrays.op_seconds
    group = {v: {v} for v in range(problem.num_ops)}
    for e in np.argsort(-weight_E):
        a = group[int(problem.graph.edges.src[e])]
        b = group[int(problem.graph.edges.dst[e])]
        load = seconds_VD[list(a)].sum(axis=0) + seconds_VD[list(b)].sum(axis=0)
        if a is not b and weight_E[e] >= least_weight and load.min() <= cap:
            a |= b
            group.update(dict.fromkeys(b, a))
    return group


def plain_devices(problem: Problem, group: dict[int, set[int]], op_V: list[int]) -> list[int]:
    """Device by op id when ops are taken in this order."""
    p, edges = problem.arrays, problem.graph.edges
    num = problem.num_devices
    free, booked = np.zeros(num), np.zeros(num)
    device, finish = {}, {}
    for v in op_V:
        ready_D = np.zeros(num)
        for e in np.flatnonzero(edges.dst == v):
            u, r = int(edges.src[e]), problem.graph.regions.of_edge[e]
            for d in range(num):
                s = device[u]
                move_s = p.latency_s[s, d] + p.size[r] * p.seconds_per_size[s, d] if s != d else 0
                ready_D[d] = max(ready_D[d], finish[u] + move_s)
        start_D = np.maximum(free, ready_D)
        homes = {device[u] for u in group[v] if u in device}
        if not homes:
            load_D = p.op_seconds[list(group[v])].sum(axis=0)
            finish_D = np.maximum(start_D, booked) + load_D
            homes = set(np.flatnonzero(finish_D <= finish_D.min() * (1 + 1e-12)).tolist())
            booked[min(homes)] += load_D[min(homes)]
        (device[v],) = homes  # the problems here leave no ties
        finish[v] = start_D[device[v]] + p.op_seconds[v, device[v]]
        free[device[v]] = finish[v]
    return [device[v] for v in range(problem.num_ops)]


def untied_problem(seed: int) -> Problem:
    """Weights, costs and speeds are all distinct; not every device runs every kind."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 25))
    size = rng.permutation(1000)[:num] + 1.0
    edges = [(u, v, size[u], 0) for v in range(1, num) for u in range(v) if rng.random() < 3 / num]
    # A region per edge, so that no two edges weigh the same.
    size_E = rng.permutation(5000)[: len(edges)] + 1.0
    edges = [(u, v, size_E[i], i) for i, (u, v, _, _) in enumerate(edges)]
    kinds = rng.choice(["a", "b", "c"], num).tolist()
    cluster = cluster_of(
        [1.0, 1.37, 0.81],
        latency_s=rng.permutation(900)[:9].reshape(3, 3) + 1.0,
        unsupported_kinds=[["b"], ["c"], []],
    )
    return build(
        graph_of((rng.permutation(1000)[:num] + 1.0).tolist(), edges, kinds=kinds), cluster
    )


def test_merging_and_mapping_equal_plain_python_where_nothing_is_tied():
    sizes = Counter()
    for seed in range(120):
        problem = untied_problem(seed)
        rng = np.random.default_rng(seed)
        weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
        least_weight = float(rng.choice([0.0, *weight_E]))
        cap = float(problem.mean_op_seconds.sum() * rng.uniform(0.05, 1.0))
        group = expected_groups(problem, least_weight, cap)
        level_V = b_levels(problem) * rng.uniform(0.5, 2.0, problem.num_ops)
        (op_V,), (device_V,) = grouped(
            problem, least_weight=least_weight, cap=cap, level=level_V, seed=seed
        )
        assert device_V == plain_devices(problem, group, op_V)
        sizes.update(len(members) for members in group.values())
    assert sum(times for size, times in sizes.items() if size > 1) > 300
    assert sizes[1] > 100


def test_ops_are_taken_by_falling_level_among_those_whose_producers_are():
    problem = build(graph_of([1] * 4, [(0, 1, 1), (2, 3, 1)]), cluster_of([1.0, 1.0]))
    op_BV, _ = grouped(problem, least_weight=np.inf, cap=0.0, level=[1, 9, 2, 3])
    assert op_BV == [[2, 3, 0, 1]]


def test_edges_merge_by_falling_weight_up_to_the_cap():
    # One op feeds three, over edges of weights 4, 5 and 3 millionths of a second. Where nothing
    # binds them, they go to idle devices.
    graph = graph_of([2] * 4, [(0, 1, 4, 1), (0, 2, 5, 2), (0, 3, 3, 3)])
    problem = build(graph, cluster_of([1.0] * 4, bytes_per_s=1e6))
    for least_weight, cap, together in [
        (0.0, 4.0, {0, 2}),
        (0.0, 6.0, {0, 1, 2}),
        (0.0, 8.0, {0, 1, 2, 3}),
        (5e-6, 100.0, {0, 2}),
        (4e-6, 100.0, {0, 1, 2}),
    ]:
        _, device_BV = grouped(problem, least_weight=least_weight, cap=cap, num=20)
        for row in device_BV:
            assert {v for v in range(4) if row[v] == row[0]} == together
            assert len(set(row)) == 5 - len(together)


def test_ties_between_edges_and_between_devices_are_drawn():
    graph = graph_of([2] * 3, [(0, 1, 5), (0, 2, 5)])
    problem = build(graph, cluster_of([1.0] * 3, bytes_per_s=1e6))
    _, device_BV = grouped(problem, least_weight=0.0, cap=4.0, num=600)
    with_first = Counter(next(v for v in (1, 2) if row[v] == row[0]) for row in device_BV)
    first = Counter(row[0] for row in device_BV)
    assert abs(with_first[1] - 300) < 6 * 12.3  # binomial standard deviations
    assert all(abs(first[d] - 200) < 6 * 11.6 for d in range(3))


def test_no_group_needs_what_no_device_can_run():
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[["a"], ["b"]])
    problem = build(graph_of([1, 1], [(0, 1, 100)], kinds=["a", "b"]), cluster)
    _, device_BV = grouped(problem, least_weight=0.0, cap=np.inf, num=20)
    assert device_BV == [[1, 0]] * 20


def test_an_op_that_does_not_fit_leaves_its_group():
    edges = [(v, v + 1, 100) for v in range(3)]
    problem = build(
        graph_of([1] * 4, edges, inputs=[(1000, [v]) for v in range(4)]), cluster_of([1.0, 1.0])
    )
    _, device_BV = grouped(problem, least_weight=0.0, cap=np.inf, num=4)
    assert all(len(set(row)) == 1 for row in device_BV)
    p = problem.arrays._replace(memory_bytes=np.full(2, 2300.0))
    problem = replace(problem, arrays=p)
    _, device_BV = grouped(problem, least_weight=0.0, cap=np.inf, num=4)
    assert all(row[0] == row[1] != row[2] == row[3] for row in device_BV)


# --- The search -----------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluations", [1, 64, 65, 200])
def test_it_counts_what_it_executes_and_returns_the_best_of_it(evaluations):
    problem = random_problem(5, num_ops=30, num_devices=3)
    with WorkConserving().open(problem) as session:
        result = Clustering(evaluations=evaluations).place(session, np.random.default_rng(1))
        assert result.evaluations == session.evaluations == evaluations
        kept = result.placement
        again = session.measure(kept.device[None], kept.priority[None]).cost_s()[0]
        assert again == result.makespan_s
        rng, costs = np.random.default_rng(1), []
        for num in [64] * (evaluations // 64) + [evaluations % 64]:
            if num:
                op_BV, device_BV, _ = draw_clusterings(problem, num, rng)
                priority_BV = np.argsort(op_BV, axis=1)
                device_BV = np.take_along_axis(device_BV, priority_BV, axis=1)
                costs.extend(session.measure(device_BV, priority_BV).cost_s())
        assert result.makespan_s == min(costs)


def test_the_same_seed_repeats_the_search():
    problem = random_problem(6, num_ops=30, num_devices=3)
    found = []
    for seed in (3, 3, 4):
        with WorkConserving().open(problem) as session:
            best = Clustering(evaluations=70).place(session, np.random.default_rng(seed))
        found.append((best.placement.device.tolist(), best.placement.priority.tolist()))
    assert found[0] == found[1] != found[2]


def test_candidates_range_from_nothing_merged_to_everything():
    # Twelve chains of two; the heavy edge of each is worth keeping on one device.
    edges = [(2 * i, 2 * i + 1, 1.0 + i) for i in range(12)]
    problem = build(graph_of([1] * 24, edges), cluster_of([1.0] * 4, latency_s=0.0))
    decisions = draw_clusterings(problem, 400, np.random.default_rng(0))
    device_BV = np.empty_like(decisions.device)
    np.put_along_axis(device_BV, decisions.op, decisions.device, axis=1)
    kept_B = (device_BV[:, 0::2] == device_BV[:, 1::2]).sum(axis=1)
    assert kept_B.max() == 12
    assert len(set(kept_B.tolist())) >= 6


@pytest.mark.parametrize("num_ops", [1, 2, 7])
def test_graphs_without_edges_are_spread(num_ops):
    problem = build(graph_of([1] * num_ops), cluster_of([1.0, 1.0]))
    with WorkConserving().open(problem) as session:
        result = Clustering(evaluations=3).place(session, np.random.default_rng(0))
    assert result.makespan_s == (num_ops + 1) // 2


def test_free_ops_and_free_transfers_are_no_trouble():
    problem = build(graph_of([0, 0, 0], [(0, 1, 0), (1, 2, 0)]), cluster_of([1.0, 1.0]))
    with WorkConserving().open(problem) as session:
        result = Clustering(evaluations=20).place(session, np.random.default_rng(0))
    assert result.makespan_s == 0.0


def test_less_than_one_evaluation_is_refused():
    with pytest.raises(InputError) as error:
        Clustering(evaluations=0)
    assert str(error.value) == (
        "Clustering.evaluations: must be a whole number of at least 1, got 0"
    )


def test_ten_thousand_ops_are_grouped():
    rng = np.random.default_rng(0)
    edges = [
        (int(rng.integers(max(0, v - 50), v)), v, float(rng.integers(1, 99)), v)
        for v in range(1, 10_000)
    ]
    flops = rng.integers(1, 99, 10_000).tolist()
    problem = build(graph_of(flops, edges), cluster_of([1.0, 1.0, 2.0]))
    with WorkConserving().open(problem) as session:
        found = Clustering(evaluations=10).place(session, rng).makespan_s
        listed = CriticalPath(evaluations=10).place(session, rng).makespan_s
    assert found < listed


@pytest.mark.parametrize(
    ("name", "published_s"),
    [("chain_mm_112nodes.txt", 1200.07), ("ffnn_192nodes.txt", 56.70)],
)
def test_a_thousand_evaluations_come_within_a_percent_of_the_published_best(name, published_s):
    problem = build(load_graph(published_graph(name)), preset(name="p100x4"))
    with Published().open(problem) as session:
        for seed in range(3):
            result = Clustering(evaluations=1000).place(session, np.random.default_rng(seed))
            assert result.makespan_s <= 1.01 * published_s


def test_the_llama_block_comes_within_a_percent_of_the_published_best():
    name = "transformer_block_215nodes.txt"
    problem = build(load_graph(published_graph(name)), preset(name="p100x4"))
    with Published().open(problem) as session:
        for seed in range(3):
            result = Clustering(evaluations=1000).place(session, np.random.default_rng(seed))
            assert result.makespan_s <= 1.01 * 166.8
