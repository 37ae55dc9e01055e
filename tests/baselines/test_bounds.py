"""Lower bounds by hand, against plain references, and on the published graphs.

That none of them is above an optimum is in test_tiny_problems.py.
"""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from problems import (
    cluster_of,
    graph_of,
    hosted_problem,
    published_graph,
    random_placement,
    random_problem,
)
from scipy.optimize import linprog

from doppler.baselines import LowerBound, lower_bound
from doppler.baselines.bounds import heads_and_tails, load_shares, lower_bounds, window_bound
from doppler.cluster import preset
from doppler.graph import load_graph
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving

# --- By hand ------------------------------------------------------------------------------------


def bound_of(flops, edges=(), *, speeds=(1.0, 1.0), streams=1) -> LowerBound:
    return lower_bound(build(graph_of(flops, edges), cluster_of(speeds)), streams=streams)


def is_bound(found: LowerBound, seconds: float, name: str) -> bool:
    return found.name == name and found.seconds == pytest.approx(seconds, rel=1e-12)


def test_load_is_shared_out_by_speed():
    assert is_bound(bound_of([8, 8, 8, 8]), 16, "load")
    assert is_bound(bound_of([8, 8, 8, 8], speeds=(1.0, 2.0)), 32 / 3, "load")
    assert is_bound(bound_of([8, 8, 8, 8], streams=2), 8, "load")


def test_load_knows_who_cannot_run_what():
    # An even share by speed is 9.6 s; but two of the ops run on the slow device alone.
    graph = graph_of([16, 16, 8, 8], kinds=["a", "a", "b", "b"])
    found = lower_bound(build(graph, cluster_of([1.0, 4.0], unsupported_kinds=[[], ["b"]])))
    assert found.name == "load"
    assert 16.0 * (1 - 1e-3) < found.seconds <= 16.0 * (1 + 1e-12)


def test_path_is_the_longest_at_the_fastest_device_without_transfers():
    chain_and_one = [(0, 1, 9), (1, 2, 9)]
    assert is_bound(bound_of([8, 8, 8, 2], chain_and_one, speeds=(1.0, 2.0)), 12, "path")


# Four ops of 3 s before (or after) one of 1 s, on as many devices. k of them on its own device take
# 3 k s, any other arrives after 3 + transfer.
JOINS = [(10, 13.0), (5, 9.0), (4, 8.0), (2, 6.0)]


@pytest.mark.parametrize(("transfer", "seconds"), JOINS)
def test_a_join_has_its_producers_one_after_another_or_waits_for_a_transfer(transfer, seconds):
    edges = [(v, 4, transfer) for v in range(4)]
    assert is_bound(bound_of([3, 3, 3, 3, 1], edges, speeds=[1.0] * 5), seconds, "join")


@pytest.mark.parametrize(("transfer", "seconds"), JOINS)
def test_a_fork_has_its_consumers_one_after_another_or_waits_for_a_transfer(transfer, seconds):
    edges = [(4, v, transfer) for v in range(4)]
    assert is_bound(bound_of([3, 3, 3, 3, 1], edges, speeds=[1.0] * 5), seconds, "join")


def test_producers_on_one_device_share_its_streams():
    edges = [(v, 4, 10) for v in range(4)]
    found = bound_of([3, 3, 3, 3, 1], edges, speeds=[1.0] * 5, streams=2)
    assert is_bound(found, 7, "join")


def test_a_join_is_on_the_device_that_suits_it():
    # Each producer runs on one device only; 5 s to the fast device, 2 s to the other.
    cluster = cluster_of(
        [4.0, 1.0], latency_s=[[0.0, 2.0], [5.0, 0.0]], unsupported_kinds=[["slow"], ["fast"]]
    )
    graph = graph_of([8, 3, 2], [(0, 2, 0), (1, 2, 0)], kinds=["fast", "slow", "join"])
    # On the fast one: 3 + 5 + 0.5 = 8.5. On the other: max(2 + 2, 3) + 2 = 6.
    assert is_bound(lower_bound(build(graph, cluster)), 6, "join")


def test_of_two_regions_the_larger_one_counts():
    edges = [(0, 2, 1, 0), (0, 2, 4, 1), (1, 2, 2, 0)]
    # Both local: 6; op 1 remote: max(3, 3 + 2); op 0 remote: 3 + 4.
    assert is_bound(bound_of([3, 3, 1], edges, speeds=[1.0] * 3), 6, "join")


def test_a_window_is_the_load_between_head_and_tail():
    edges = [(0, v, 0) for v in range(1, 5)] + [(v, 5, 0) for v in range(1, 5)]
    assert is_bound(bound_of([3, 4, 4, 4, 4, 2], edges), 3 + 16 / 2 + 2, "window")


def test_many_producers_are_joined_too():
    num = 1000
    edges = [(v, num, 100) for v in range(num)]
    problem = build(graph_of([1] * (num + 1), edges), cluster_of([1.0] * 3))
    head_VD, tail_VD = heads_and_tails(problem)
    assert (head_VD[num] == 101).all() and (head_VD[:num] == 0).all()
    assert (tail_VD[num] == 0).all() and (tail_VD[:num] == 1).all()


def test_the_bound_is_attained_where_work_divides_evenly():
    problem = build(graph_of([2, 2, 2, 2]), cluster_of([1.0, 1.0]))
    with WorkConserving().open(problem) as session:
        assert session.measure(np.array([[0, 0, 1, 1]])).cost_s()[0] == 4.0
    assert lower_bound(problem).seconds == 4.0


def test_ops_that_take_no_time_take_none():
    assert is_bound(bound_of([0, 0], [(0, 1, 5)]), 0, "load")


# --- Against plain references -------------------------------------------------------------------


def fractional_assignment(seconds_VD: np.ndarray) -> float:
    """Least time in which divisible ops can be shared out, as a linear program."""
    num_ops, num_devices = seconds_VD.shape
    able_VD = np.isfinite(seconds_VD)
    op, device = np.nonzero(able_VD)
    whole = np.zeros((num_ops, len(op) + 1))
    whole[op, np.arange(len(op))] = 1.0
    busy = np.zeros((num_devices, len(op) + 1))
    busy[device, np.arange(len(op))] = seconds_VD[able_VD]
    busy[:, -1] = -1.0
    cost = np.append(np.zeros(len(op)), 1.0)
    found = linprog(cost, A_ub=busy, b_ub=np.zeros(num_devices), A_eq=whole, b_eq=np.ones(num_ops))
    return float(found.fun)


def test_load_shares_add_up_to_the_fractional_assignment():
    gaps = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        num_ops, num_devices = int(rng.integers(1, 60)), int(rng.integers(1, 7))
        seconds_VD = rng.uniform(1.0, 10.0, (num_ops, num_devices))
        if seed % 2:
            forbidden_VD = rng.random(seconds_VD.shape) < 0.4
            forbidden_VD[np.arange(num_ops), rng.integers(num_devices, size=num_ops)] = False
            seconds_VD[forbidden_VD] = np.inf
        optimum = fractional_assignment(seconds_VD)
        share = load_shares(seconds_VD).sum()
        assert share <= optimum * (1 + 1e-9)
        gaps.append(1 - share / optimum)
    assert max(gaps) < 0.02 and np.median(gaps) < 1e-3


def plain_heads(problem: Problem, streams: int) -> np.ndarray:
    """Heads by trying all sets of local producers."""
    p, edges = problem.arrays, problem.graph.edges
    of_edge = problem.graph.regions.of_edge
    head_VD = np.full_like(p.op_seconds, np.inf)
    for v in np.argsort(np.array(depths(problem)), kind="stable"):
        producers = sorted({int(u) for u in edges.src[edges.dst == v]})
        for d in np.flatnonzero(np.isfinite(p.op_seconds[v])):
            best = np.inf
            for local in chain.from_iterable(
                combinations(producers, num) for num in range(len(producers) + 1)
            ):
                start = 0.0
                for release in [head_VD[u, d] for u in local]:
                    later = [u for u in local if head_VD[u, d] >= release]
                    work = sum(p.op_seconds[u, d] for u in later) / streams
                    start = max([start, release + work])
                ends = [head_VD[u, d] + p.op_seconds[u, d] for u in local]
                arrivals = [
                    min(
                        head_VD[u, e]
                        + p.op_seconds[u, e]
                        + p.latency_s[e, d]
                        + p.size[r] * p.seconds_per_size[e, d]
                        for e in range(problem.num_devices)
                        if e != d
                    )
                    if problem.num_devices > 1
                    else np.inf
                    for u, r in zip(edges.src[edges.dst == v], of_edge[edges.dst == v], strict=True)
                    if u not in local
                ]
                best = min(best, max([start, *ends, *arrivals]))
            head_VD[v, d] = best
    return head_VD


def depths(problem: Problem) -> list[int]:
    """Edges on the longest path to each op."""
    edges = list(
        zip(problem.graph.edges.src.tolist(), problem.graph.edges.dst.tolist(), strict=True)
    )
    depth = [0] * problem.num_ops
    for _ in range(problem.num_ops):
        for src, dst in edges:
            depth[dst] = max(depth[dst], depth[src] + 1)
    return depth


def test_heads_equal_the_best_of_all_sets_of_local_producers():
    for seed in range(60):
        problem = random_problem(
            seed, num_ops=1 + seed % 14, costs="tied" if seed % 2 else "distinct"
        )
        streams = 1 + seed % 3
        head_VD, _ = heads_and_tails(problem, streams=streams)
        assert head_VD == pytest.approx(plain_heads(problem, streams), rel=1e-12)


def test_bounds_hold_between_hosts():
    """They know how fast interfaces are, not that transfers wait for them."""
    for seed in range(60):
        problem = hosted_problem(seed, costs="tied" if seed % 2 else "distinct")
        bound = lower_bound(problem)
        slow = build(problem.graph, replace(problem.cluster, nic_latency_s=1e6))
        assert lower_bound(slow).seconds >= bound.seconds
        with WorkConserving().open(problem) as session:
            for one in range(5):
                placement = random_placement(problem, one)
                measured = session.measure(placement.device[None], placement.priority[None])
                assert measured.seconds[0, 0] >= bound.seconds * (1 - 1e-12)


def turned_round(problem: Problem) -> Problem:
    """All edges and all links the other way."""
    edges, cluster = problem.graph.edges, problem.cluster
    columns = zip(edges.dst.tolist(), edges.src.tolist(), edges.bytes.tolist(), strict=True)
    rows = [(src, dst, num_bytes, e) for e, (src, dst, num_bytes) in enumerate(columns)]
    graph = graph_of(problem.graph.ops.flops.tolist(), rows, kinds=problem.graph.ops.kinds)
    links = {"bytes_per_s": cluster.bytes_per_s.T, "latency_s": cluster.latency_s.T}
    return build(graph, replace(cluster, **links))


def test_tails_are_the_heads_of_the_graph_turned_round():
    for seed in range(40):
        problem = random_problem(seed, num_ops=1 + seed % 14, given_costs=False)
        head_VD, tail_VD = heads_and_tails(problem)
        turned_head_VD, turned_tail_VD = heads_and_tails(turned_round(problem))
        assert np.array_equal(head_VD, turned_tail_VD)
        assert np.array_equal(tail_VD, turned_head_VD)


def test_a_window_is_the_largest_over_all_sets():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, 9))
        head_V, share_V, tail_V = (rng.integers(0, 10, num).astype(float) for _ in range(3))
        sets = chain.from_iterable(combinations(range(num), size) for size in range(1, num + 1))
        expected = max(
            head_V[list(ops)].min() + share_V[list(ops)].sum() + tail_V[list(ops)].min()
            for ops in sets
        )
        assert window_bound(head_V, share_V, tail_V) == expected


# --- On the published graphs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "seconds", "name"),
    [
        ("chain_mm_112nodes.txt", 1200.07, "load"),
        ("ffnn_192nodes.txt", 56.6957965, "load"),
        ("transformer_block_215nodes.txt", 141.0914869, "join"),
    ],
)
def test_bounds_of_the_published_graphs(file, seconds, name):
    problem = build(load_graph(published_graph(file)), preset(name="p100x4"))
    found = lower_bound(problem)
    assert found.name == name
    assert found.seconds == pytest.approx(seconds, rel=1e-9)
    bounds = lower_bounds(problem)
    assert bounds["path"] <= bounds["join"]
    assert bounds["load"] <= bounds["window"] * (1 + 1e-12)


def test_equal_devices_share_each_op_equally():
    seconds_V = np.array([1.0, 3.0, 0.0])
    share_V = load_shares(np.repeat(seconds_V[:, None], 4, axis=1))
    assert (share_V == seconds_V / 4).all()
