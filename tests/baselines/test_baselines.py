"""Baselines against plain references, enumeration and small cases by hand."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from problems import cluster_of, graph_of, optimum, random_problem

from doppler.baselines import CriticalPath, Random, RoundRobin, SingleDevice, lower_bound
from doppler.baselines.levels import b_level_priority, b_levels
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving

# --- Critical path ------------------------------------------------------------------------------


class ListScheduling:
    """The heuristic's rules in plain Python, from the graph and the cluster alone."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        edges = problem.graph.edges
        self.edges = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
        pairs = list(permutations(range(problem.num_devices), 2))
        self.level: dict[int, float] = {}
        remaining = set(range(problem.num_ops))
        while remaining:
            for v in list(remaining):
                outgoing = [(e, dst) for e, (src, dst) in enumerate(self.edges) if src == v]
                if all(dst in self.level for _, dst in outgoing):
                    own = [s for s in problem.arrays.op_seconds[v] if np.isfinite(s)]
                    paths = [
                        sum(self.transfer_s(e, s, d) for s, d in pairs) / max(1, len(pairs))
                        + self.level[dst]
                        for e, dst in outgoing
                    ]
                    self.level[v] = sum(own) / len(own) + max(paths, default=0.0)
                    remaining.remove(v)
        self.tie_s = 1e-9 * max(self.level.values())

    def transfer_s(self, e: int, src_device: int, dst_device: int) -> float:
        graph, cluster = self.problem.graph, self.problem.cluster
        if src_device == dst_device:
            return 0.0
        if graph.given_costs is not None:
            return float(graph.given_costs.transfer_seconds[e])
        move_s = graph.edges.bytes[e] / cluster.bytes_per_s[src_device, dst_device]
        return float(cluster.latency_s[src_device, dst_device] + move_s)

    def begin(self) -> None:
        self.device: dict[int, int] = {}
        self.finish: dict[int, float] = {}

    def best_ops(self) -> set[int]:
        waiting = {dst for src, dst in self.edges if src not in self.device}
        open_ops = set(range(self.problem.num_ops)) - set(self.device) - waiting
        highest = max(self.level[v] for v in open_ops)
        return {v for v in open_ops if self.level[v] >= highest - self.tie_s}

    def start_s(self, v: int, d: int) -> float:
        arrivals = [
            self.finish[src] + self.transfer_s(e, self.device[src], d)
            for e, (src, dst) in enumerate(self.edges)
            if dst == v
        ]
        free_s = max((self.finish[u] for u, on in self.device.items() if on == d), default=0.0)
        return max([free_s, *arrivals])

    def best_devices(self, v: int) -> set[int]:
        able = np.flatnonzero(np.isfinite(self.problem.arrays.op_seconds[v])).tolist()
        earliest = min(self.start_s(v, d) for d in able)
        return {d for d in able if self.start_s(v, d) <= earliest + self.tie_s}

    def place(self, v: int, d: int) -> None:
        self.finish[v] = self.start_s(v, d) + self.problem.arrays.op_seconds[v, d]
        self.device[v] = d


def problem_without_ties(seed: int) -> Problem:
    """One source that only device 0 runs; unequal costs and unequal links."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 15))
    size = rng.permutation(1000)[:num] + 1.0
    edges = [(0, v) for v in range(1, num)]
    edges += [(u, v) for v in range(2, num) for u in range(1, v) if rng.random() < 0.3]
    graph = graph_of(
        (rng.permutation(1000)[:num] + 1.0).tolist(),
        [(u, v, size[u]) for u, v in edges],
        kinds=["source"] + ["op"] * (num - 1),
    )
    cluster = cluster_of(
        rng.choice([0.5, 1.0, 2.0], 3).tolist(),
        latency_s=rng.permutation(900)[:9].reshape(3, 3) + 1.0,
        unsupported_kinds=[[], ["source"], ["source"]],
    )
    return build(graph, cluster)


def test_critical_path_equals_plain_list_scheduling_where_nothing_is_tied():
    compared = 0
    for seed in range(40):
        problem = problem_without_ties(seed)
        plain = ListScheduling(problem)
        plain.begin()
        expected, tied = [], False
        for _ in range(problem.num_ops):
            ops = plain.best_ops()
            v = min(ops)
            devices = plain.best_devices(v)
            tied = tied or len(ops) > 1 or len(devices) > 1
            plain.place(v, min(devices))
            expected.append((v, min(devices)))
        if tied:
            continue
        compared += 1
        op_BV, device_BV = CriticalPath(evaluations=1).decide(
            problem, 3, np.random.default_rng(seed)
        )
        for op_V, device_V in zip(op_BV, device_BV, strict=True):
            assert list(zip(op_V.tolist(), device_V.tolist(), strict=True)) == expected
    assert compared >= 20


@pytest.mark.parametrize("costs", ["tied", "distinct"])
def test_every_decision_has_the_largest_b_level_and_the_earliest_start(costs):
    for seed in range(60):
        problem = random_problem(seed, num_ops=1 + seed % 25, costs=costs)
        plain = ListScheduling(problem)
        op_BV, device_BV = CriticalPath(evaluations=1).decide(
            problem, 3, np.random.default_rng(seed)
        )
        for op_V, device_V in zip(op_BV.tolist(), device_BV.tolist(), strict=True):
            plain.begin()
            for v, d in zip(op_V, device_V, strict=True):
                assert v in plain.best_ops()
                assert d in plain.best_devices(v)
                plain.place(v, d)


def test_ties_between_ops_and_between_devices_are_drawn_evenly():
    problem = build(graph_of([1, 1, 1]), cluster_of([1.0] * 4))
    num = 6000
    op_BV, device_BV = CriticalPath(evaluations=1).decide(problem, num, np.random.default_rng(0))
    first = Counter(zip(op_BV[:, 0].tolist(), device_BV[:, 0].tolist(), strict=True))
    assert len(first) == 12
    for times in first.values():  # binomial: mean 500, standard deviation 21
        assert abs(times - num / 12) < 6 * 21
    # Who went where decides what is earliest next: no device is taken twice.
    assert all(len(set(row)) == 3 for row in device_BV.tolist())


def test_critical_path_keeps_the_best_of_its_runs_with_the_order_of_decisions_as_priority():
    for seed in range(10):
        problem = random_problem(seed, num_ops=20, num_devices=3)
        with WorkConserving().open(problem) as session:
            result = CriticalPath(evaluations=20).place(session, np.random.default_rng(seed))
            assert result.evaluations == session.evaluations == 20
            op_BV, device_BV = CriticalPath(evaluations=20).decide(
                problem, 20, np.random.default_rng(seed)
            )
            costs = []
            for op_V, device_V in zip(op_BV, device_BV, strict=True):
                device, priority = np.empty(20, int), np.empty(20, int)
                for step in range(20):
                    device[op_V[step]], priority[op_V[step]] = device_V[step], step
                costs.append(session.measure(device[None], priority[None]).cost_s()[0])
            assert result.makespan_s == min(costs)
            kept = result.placement
            again = session.measure(kept.device[None], kept.priority[None]).cost_s()[0]
            assert again == result.makespan_s


# --- Lower bound --------------------------------------------------------------------------------


@pytest.mark.parametrize("contention", ["fifo", "none"])
def test_the_bound_is_below_the_optimum_over_all_placements(contention):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = random_problem(
            seed,
            num_ops=int(rng.integers(1, 7)),
            num_devices=int(rng.integers(1, 4)),
            costs="tied" if seed % 2 else "distinct",
        )
        best = optimum(problem, WorkConserving(contention=contention), orders=False)
        assert lower_bound(problem).seconds <= best * (1 + 1e-12)


def test_the_bound_is_below_the_optimum_over_all_placements_and_orders():
    for seed in range(100, 140):
        problem = random_problem(seed, num_ops=1 + seed % 4, num_devices=1 + seed % 2)
        best = optimum(problem, WorkConserving(queue="priority"), orders=True)
        assert lower_bound(problem).seconds <= best * (1 + 1e-12)


# --- The methods that look at nothing, and levels -------------------------------------------------


def place(baseline, problem: Problem):
    with WorkConserving().open(problem) as session:
        result = baseline.place(session, np.random.default_rng(0))
        assert result.evaluations == session.evaluations
    return result


def test_single_device_takes_the_fastest():
    problem = build(graph_of([4, 2], [(0, 1, 100)]), cluster_of([1.0, 2.0, 0.5]))
    result = place(SingleDevice(), problem)
    assert result.placement.device.tolist() == [1, 1]
    assert result.makespan_s == 3.0


def test_single_device_prefers_running_all_ops_and_lends_out_what_it_cannot_run():
    kinds = ["a", "b", "c"]
    cluster = cluster_of(
        [8.0, 1.0, 2.0, 4.0], unsupported_kinds=[["a", "b"], ["c"], ["c"], ["a", "b"]]
    )
    # Devices 1 and 2 run two kinds, 2 is faster; of those that run c, 0 is the fastest.
    result = place(SingleDevice(), build(graph_of([8, 8, 8], kinds=kinds), cluster))
    assert result.placement.device.tolist() == [2, 2, 0]


def test_round_robin_deals_in_topological_order_and_passes_over_who_cannot():
    # Topological order: 1, 2, 0, 3.
    graph = graph_of([1] * 4, [(2, 0, 1), (1, 3, 1), (0, 3, 1)], kinds=["a", "a", "b", "a"])
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[[], ["b"], []])
    # 1 -> 0; 2 is a b and passes over 1 -> 2; 0 -> 0; 3 -> 1.
    assert place(RoundRobin(), build(graph, cluster)).placement.device.tolist() == [0, 0, 2, 1]


def test_random_keeps_the_best_of_its_samples_and_draws_able_devices_evenly():
    cluster = cluster_of([1.0, 2.0, 4.0], unsupported_kinds=[["a"], [], []])
    problem = build(graph_of([4], kinds="a"), cluster)
    drawn = Counter()
    with WorkConserving().open(problem) as session:
        for seed in range(600):
            one = Random(evaluations=1).place(session, np.random.default_rng(seed))
            drawn[int(one.placement.device[0])] += 1
        assert session.evaluations == 600
        best = Random(evaluations=30).place(session, np.random.default_rng(0))
    assert drawn.keys() == {1, 2}
    assert abs(drawn[1] - 300) < 6 * 12.3  # binomial standard deviation
    assert best.makespan_s == 1.0
    assert best.evaluations == 30


def test_b_levels_include_transfers_and_means_over_devices():
    graph = graph_of([4, 8, 2], [(0, 1, 3), (1, 2, 5)])
    problem = build(graph, cluster_of([1.0, 2.0], latency_s=1.0))
    # Means: 3, 6, 1.5 seconds; transfers 4 and 6.
    assert b_levels(problem).tolist() == [20.5, 13.5, 1.5]


def test_b_level_priority_puts_producers_first_even_where_levels_are_equal():
    problem = build(graph_of([0, 0, 0, 5], [(2, 0, 0), (0, 1, 0)]), cluster_of([1.0, 1.0]))
    # Op 3 has the largest b_level; 2, 0, 1 are tied and follow each other.
    assert b_level_priority(problem).tolist() == [2, 3, 1, 0]


def test_single_device_takes_one_that_has_room():
    graph = graph_of([4.0, 4.0], [(0, 1, 1.0)], output_bytes=[6.0, 6.0])
    problem = build(graph, cluster_of([2.0, 1.0], memory_bytes=[5.0, 100.0]))
    result = place(SingleDevice(), problem)
    assert result.placement.device.tolist() == [1, 1]
    assert result.makespan_s == 8.0
