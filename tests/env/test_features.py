"""What the policies see, against a plain and slow placement process."""

import ast
import dataclasses
import re
from functools import cached_property
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, random_problem

from doppler.cluster import Cluster, preset
from doppler.env import (
    DEVICE_FEATURES,
    DEVICE_GROUP_FEATURES,
    OP_FEATURES,
    SEL_FEATURES,
    SEL_GROUP_FEATURES,
    make_view,
    merged_at_random,
)
from doppler.env import features as features_module
from doppler.env import problem_view as view_module
from doppler.env.features import DEVICE
from doppler.env.problem_view import DIFFUSIONS, device_classes
from doppler.graph import DataflowGraph
from doppler.policies import Decisions, DualPolicy
from doppler.problem import Problem, build


def make_policy(seed: int = 0) -> DualPolicy:
    torch.manual_seed(seed)
    return DualPolicy(sel_hidden=8, plc_hidden=8)


class PlainProcess:
    """The placement process from the graph and the cluster, one feature after the other.

    Nothing is kept up to date: every number is computed anew from the decisions so far.
    """

    def __init__(self, problem: Problem) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.num_ops, self.num_devices = problem.num_ops, problem.num_devices
        self.seconds = problem.arrays.op_seconds
        self.scale_s = problem.scale_s
        self.problem = problem
        edges = graph.edges
        self.edges = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
        self.region = graph.regions.of_edge.tolist()
        self.pairs = list(permutations(range(self.num_devices), 2))

        def move_s(e: int, s: int, d: int) -> float:
            if graph.given_costs is not None:
                return float(graph.given_costs.transfer_seconds[e])
            return float(cluster.latency_s[s, d] + edges.bytes[e] / cluster.bytes_per_s[s, d])

        self.move_s = move_s
        # The weight of an edge: the mean seconds of its transfer, 0 on one device.
        self.weight = [
            sum(move_s(e, s, d) for s, d in self.pairs) / max(1, len(self.pairs))
            for e in range(len(self.edges))
        ]
        self.largest_s = max(self.weight, default=0.0) or 1.0
        self.sequence: list[int] = []
        self.device: dict[int, int] = {}
        self.start: dict[int, float] = {}
        self.finish: dict[int, float] = {}

    # The graph.

    def producers(self, v: int) -> set[int]:
        return {src for src, dst in self.edges if dst == v}

    def weight_of(self, src: int, dst: int) -> float:
        """Summed over the regions that go from one op to the other."""
        return sum(w for w, edge in zip(self.weight, self.edges, strict=True) if edge == (src, dst))

    def sibling_weights(self, v: int) -> dict[int, float]:
        """How strongly v is tied to others by consumers that they share."""
        weights: dict[int, float] = {}
        for consumer in {dst for src, dst in self.edges if src == v}:
            for other in self.producers(consumer) - {v}:
                tie = self.weight_of(v, consumer) * self.weight_of(other, consumer)
                weights[other] = weights.get(other, 0.0) + tie
        return weights

    @cached_property
    def level(self) -> list[int]:
        level = [0] * self.num_ops
        for _ in range(self.num_ops):
            for src, dst in self.edges:
                level[dst] = max(level[dst], level[src] + 1)
        return level

    @cached_property
    def kernels(self) -> list[np.ndarray]:
        """Dense K[p, v] of each diffusion: (1 - a) sum_k (a S)^k, the columns summing to 1."""
        result = []
        for retention, weighted in DIFFUSIONS:
            weights = np.zeros((self.num_ops, self.num_ops))
            for (src, dst), weight in zip(self.edges, self.weight, strict=True):
                weights[src, dst] += weight if weighted else 1.0
                weights[dst, src] += weight if weighted else 1.0
            degree = weights.sum(axis=1)
            root = np.sqrt(np.where(degree > 0, degree, 1.0))
            step = retention * weights / np.outer(root, root)
            term = total = np.eye(self.num_ops)
            for _ in range(600):  # 0.95^600 is 4e-14
                term = term @ step
                total = total + term
            result.append(total / total.sum(axis=0))
        return result

    # What is placed.

    def candidates(self) -> list[int]:
        return [
            v
            for v in range(self.num_ops)
            if v not in self.device and self.producers(v) <= self.device.keys()
        ]

    def born(self, v: int) -> int:
        """The step at which v became a candidate."""
        return max((self.sequence.index(p) + 1 for p in self.producers(v)), default=0)

    def on(self, d: int) -> list[int]:
        return [v for v in self.sequence if self.device[v] == d]

    def available(self, d: int) -> float:
        return max((self.finish[v] for v in self.on(d)), default=0.0)

    def load(self, d: int) -> float:
        return sum(self.seconds[v, d] for v in self.on(d))

    def start_on(self, v: int, d: int) -> float:
        arrivals = [
            self.finish[src] + (self.move_s(e, self.device[src], d) if self.device[src] != d else 0)
            for e, (src, dst) in enumerate(self.edges)
            if dst == v
        ]
        return max([self.available(d), *arrivals])

    # The same where transfers queue. Everything is played again, from the first decision on.

    def queued(self, v: int, d: int) -> tuple[float, list[float]]:
        """Start of v on d behind all decisions so far; when each device is free before that."""
        link_free: dict[tuple[int, int], float] = {}
        arrival: dict[tuple[int, int], float] = {}  # of (region, device)
        device_free, finish = [0.0] * self.num_devices, {}
        where = {**self.device, v: d}
        start = 0.0
        for u in [*self.sequence, v]:
            at = where[u]
            ready = device_free[at]
            into = [e for e, (_, dst) in enumerate(self.edges) if dst == u]
            for e in sorted(into, key=self.region.__getitem__):
                src = self.edges[e][0]
                key, link = (self.region[e], at), (where[src], at)
                if where[src] == at:
                    ready = max(ready, finish[src])
                    continue
                if key not in arrival:
                    begin = max(finish[src], link_free.get(link, 0.0))
                    arrival[key] = link_free[link] = begin + self.move_s(e, *link)
                ready = max(ready, arrival[key])
            start, finish[u] = ready, ready + self.seconds[u, at]
            if u != v:
                device_free[at] = finish[u]
        return start, device_free

    def able(self, v: int) -> list[int]:
        return [d for d in range(self.num_devices) if np.isfinite(self.seconds[v, d])]

    def affinity(self, v: int, d: int, kernel: int) -> float:
        return sum(self.kernels[kernel][p, v] for p in self.on(d))

    def place(self, v: int, d: int) -> None:
        self.start[v] = self.start_on(v, d)
        self.finish[v] = self.start[v] + self.seconds[v, d]
        self.device[v] = d
        self.sequence.append(v)

    # What is seen of it.

    def sel_features(self, v: int) -> dict[str, float]:
        step, scale = len(self.sequence), self.scale_s
        last = self.sequence[-1] if self.sequence else None
        start = min(self.start_on(v, d) for d in self.able(v))
        available = min(self.available(d) for d in range(self.num_devices))
        siblings = self.sibling_weights(v)
        placed = sum(weight for other, weight in siblings.items() if other in self.device)
        return {
            "age": min((step - self.born(v)) / (4 * self.num_devices), 2),
            "consumer_of_last": float(last in self.producers(v)),
            "diffusion_to_last_device": (
                0.0 if last is None else self.affinity(v, self.device[last], 0)
            ),
            "start_slack": min((start - available) / scale, 2),
            "siblings_placed": ratio(placed, sum(siblings.values())),
            "start": min(start / scale, 4),
            "progress": step / self.num_ops,
            "candidates": np.log1p(len(self.candidates())) / 4,
        }

    def device_features(self, v: int, d: int) -> dict[str, float]:
        scale, devices = self.scale_s, range(self.num_devices)
        start = self.start_on(v, d)
        best_start = min(self.start_on(v, e) for e in self.able(v))
        best_finish = min(self.start_on(v, e) + self.seconds[v, e] for e in self.able(v))
        fastest = min(self.seconds[v])
        incoming = sum(self.weight_of(p, v) for p in self.producers(v))
        here = [p for p in self.producers(v) if self.device[p] == d]
        incoming_here = sum(self.weight_of(p, v) for p in here)
        siblings = self.sibling_weights(v)
        siblings_here = sum(w for u, w in siblings.items() if self.device.get(u) == d)
        level_ops = [u for u in range(self.num_ops) if self.level[u] == self.level[v]]
        level_work = sum(self.problem.mean_op_seconds[u] for u in level_ops)
        level_here = sum(self.seconds[u, d] for u in level_ops if self.device.get(u) == d)
        # The largest single transfer; of equal ones that of the producer placed first.
        largest = max(
            (w for w, (_, dst) in zip(self.weight, self.edges, strict=True) if dst == v),
            default=None,
        )
        of_largest = [
            self.sequence.index(src)
            for w, (src, dst) in zip(self.weight, self.edges, strict=True)
            if dst == v and w == largest
        ]
        largest_device = self.device[self.sequence[min(of_largest)]] if of_largest else None
        affinity = [[self.affinity(v, e, k) for e in devices] for k in range(len(DIFFUSIONS))]
        queued = {e: self.queued(v, e)[0] for e in self.able(v)}
        queued_finish = {e: begin + self.seconds[v, e] for e, begin in queued.items()}
        over_best = queued_finish[d] - min(queued_finish.values())
        free = self.queued(v, d)[1]
        return {
            "producers": ratio(incoming_here, incoming),
            "siblings": ratio(siblings_here, sum(siblings.values())),
            "diffusion_near": affinity[0][d],
            "diffusion_far": affinity[1][d],
            "diffusion_unweighted": affinity[2][d],
            "concurrent_work": min(ratio(level_here, level_work), 1),
            "start_over_min": min((start - best_start) / scale, 2),
            "available_over_min": min(
                (self.available(d) - min(map(self.available, devices))) / scale, 2
            ),
            "load_over_min": min((self.load(d) - min(map(self.load, devices))) / scale, 2),
            "to_move": min((incoming - incoming_here) / self.largest_s, 4),
            "largest_producer": float(largest_device == d),
            "empty": float(not self.on(d)),
            "last_device": float(bool(self.sequence) and self.device[self.sequence[-1]] == d),
            "attains_min_start": float(start <= best_start),
            "progress": len(self.sequence) / self.num_ops,
            "load": min(self.load(d) / scale, 4),
            "producer_compute": min(sum(self.seconds[p, d] for p in here) / scale, 2),
            "producers_start": min(min((self.start[p] for p in here), default=0) / scale, 4),
            "producers_end": min(max((self.finish[p] for p in here), default=0) / scale, 4),
            "start": min(start / scale, 4),
            "slower_than_best": (
                2.0
                if np.isinf(self.seconds[v, d])
                else min(ratio(self.seconds[v, d] - fastest, fastest), 2)
            ),
            "finish_over_min": min((start + self.seconds[v, d] - best_finish) / scale, 2),
            "diffusion_near_share": ratio(affinity[0][d], sum(affinity[0])),
            "diffusion_far_share": ratio(affinity[1][d], sum(affinity[1])),
            "diffusion_unweighted_share": ratio(affinity[2][d], sum(affinity[2])),
            "queued_start_over_min": np.log1p((queued[d] - min(queued.values())) / scale),
            "queued_finish_over_min": np.log1p(over_best / scale),
            "attains_min_queued_finish": float(over_best <= 0),
            "queued_wait": np.log1p((queued[d] - free[d]) / scale),
            "queued_available_over_min": np.log1p((free[d] - min(free)) / scale),
        }

    def sel_group_features(self, v: int, group: list[int]) -> dict[str, float]:
        """Of the ops that go where v goes: how long they take, or that v knows where to go."""
        others = [u for u in range(self.num_ops) if group[u] == group[v] and u != v]
        placed = any(u in self.device for u in others)
        rest = sum(self.problem.mean_op_seconds[u] for u in others)
        return {
            "group_rest": 0.0 if placed else min(rest / self.scale_s, 2),
            "group_placed": float(placed),
        }

    def group_features(self, v: int, d: int, group: list[int]) -> dict[str, float]:
        """What d means for the ops that go where v goes; 0 where that is v alone, or known."""
        members = [u for u in range(self.num_ops) if group[u] == group[v]]
        if len(members) == 1 or any(u in self.device for u in members):
            return dict.fromkeys(DEVICE_GROUP_FEATURES, 0.0)
        rest = sum(self.problem.mean_op_seconds[u] for u in members if u != v)
        edges = [(p, u) for u in members for p in self.producers(u)]
        incoming = sum(self.weight_of(*edge) for edge in edges)
        here = sum(self.weight_of(p, u) for p, u in edges if self.device.get(p) == d)
        affinity = [sum(self.affinity(u, d, k) for u in members) for k in range(len(DIFFUSIONS))]
        return {
            "group_rest": min(rest / self.scale_s, 2),
            "group_producers": ratio(here, incoming),
            "group_diffusion_near": min(affinity[0], 4),
            "group_diffusion_far": min(affinity[1], 4),
            "group_diffusion_unweighted": min(affinity[2], 4),
        }

    def allowed(self, v: int, d: int) -> bool:
        """Devices that run v; of the empty ones that nothing tells apart only the first."""
        twins = [e for e in range(d) if not self.on(e) and interchangeable(self.problem, d, e)]
        return d in self.able(v) and (bool(self.on(d)) or not twins)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def interchangeable(problem: Problem, d: int, e: int) -> bool:
    """Whether swapping two devices changes no number of the problem."""
    p = problem.arrays
    swap = {d: e, e: d}
    links = [(s, t) for s, t in permutations(range(problem.num_devices), 2)]
    return (
        p.op_seconds[:, d].tolist() == p.op_seconds[:, e].tolist()
        and p.memory_bytes[d] == p.memory_bytes[e]
        and all(
            matrix[s, t] == matrix[swap.get(s, s), swap.get(t, t)]
            for matrix in (p.latency_s, p.seconds_per_size)
            for s, t in links
        )
    )


def assert_same_features(problem: Problem, decisions: Decisions) -> None:
    """Every recorded feature, mask and candidate of every episode, step by step."""
    record = decisions.record
    for b in range(len(decisions.op)):
        plain = PlainProcess(problem)
        for t in range(problem.num_ops):
            rows = slice(record.candidate_ptr[b, t], record.candidate_ptr[b, t + 1])
            v, d = int(decisions.op[b, t]), int(decisions.device[b, t])
            seen = record.candidate_op[b, rows].tolist()
            assert sorted(seen) == plain.candidates()
            assert record.candidate_op[b, record.chosen[b, t]] == v
            assert record.chosen[b, t] in range(rows.start, rows.stop)
            for op, x in zip(seen, record.candidate_x[b, rows], strict=True):
                assert_named(SEL_FEATURES, x, plain.sel_features(op), f"step {t}, op {op}")
            # Of devices that cannot run the op, too: gradients pass through what is masked.
            assert np.isfinite(record.device_x[b, t]).all()
            for device in range(problem.num_devices):
                allowed = plain.allowed(v, device)
                assert bool(record.device_mask[b, t, device]) == allowed, (t, v, device)
                if np.isfinite(problem.arrays.op_seconds[v, device]):
                    assert_named(
                        DEVICE_FEATURES,
                        record.device_x[b, t, device],
                        plain.device_features(v, device),
                        f"step {t}, op {v}, device {device}",
                    )
            plain.place(v, d)


def assert_named(names, values, expected: dict[str, float], where: str) -> None:
    assert set(names) == set(expected)
    for name, value in zip(names, values, strict=True):
        assert value == pytest.approx(expected[name], abs=2e-5), f"{name} at {where}"


@pytest.mark.parametrize("costs", ["tied", "distinct"])
@pytest.mark.parametrize("seed", range(14))
def test_recorded_features_are_those_of_the_plain_process(seed, costs):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        num_ops=int(rng.integers(1, 16)),
        num_devices=1 + seed % 5,
        costs=costs,
        identical_devices=seed % 3 == 0,
    )
    decisions = make_policy(seed).rollout(make_view(problem), 2, None, rng)
    assert_same_features(problem, decisions)


@pytest.mark.parametrize("seed", range(6))
def test_of_merged_views_devices_are_also_seen_as_places_of_the_whole_group(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops=18, num_devices=1 + seed % 4, costs="distinct")
    view = merged_at_random(make_view(problem), rng)
    group = view.arrays.group.tolist()
    decisions = make_policy(seed).rollout(view, 2, None, rng)
    record = decisions.record
    seen = 0
    for b in range(2):
        plain = PlainProcess(problem)
        for t in range(problem.num_ops):
            v = int(decisions.op[b, t])
            for row in range(*record.candidate_ptr[b, t : t + 2]):
                op = int(record.candidate_op[b, row])
                expected = {
                    **plain.sel_features(op),
                    **plain.sel_group_features(op, group),
                }
                names = (*SEL_FEATURES, *SEL_GROUP_FEATURES)
                assert_named(names, record.candidate_x[b, row], expected, f"step {t}, op {op}")
            for d in plain.able(v):
                x = record.device_x[b, t, d]
                expected = {
                    **plain.device_features(v, d),
                    **plain.group_features(v, d, group),
                }
                names = (*DEVICE_FEATURES, *DEVICE_GROUP_FEATURES)
                assert_named(names, x, expected, f"step {t}, op {v}, device {d}")
                seen += expected["group_rest"] > 0
            plain.place(v, int(decisions.device[b, t]))
    assert (seen > 0) == (len(set(group)) < problem.num_ops)


def test_recorded_features_are_those_of_the_plain_process_on_a_cube_mesh():
    problem = build(random_problem(3, num_ops=14).graph, preset(name="v100x8"))
    decisions = make_policy().rollout(make_view(problem), 2, None, np.random.default_rng(3))
    assert_same_features(problem, decisions)


def test_followed_decisions_are_seen_as_if_they_were_the_policys_own():
    problem = random_problem(8, num_ops=12, num_devices=3)
    view, rng = make_view(problem), np.random.default_rng(8)
    played = make_policy().rollout(view, 2, None, rng)
    assert_same_features(problem, make_policy().follow(view, played.op, played.device))


# --- Diffusion ----------------------------------------------------------------------------------


def dense_kernels(problem: Problem) -> np.ndarray:
    """[V, V, kernels], row p: who feels where op p is placed."""
    arrays = make_view(problem).arrays
    rows = np.repeat(np.arange(problem.num_ops), np.diff(arrays.kernel_ptr))
    kernels = np.zeros((problem.num_ops, problem.num_ops, len(DIFFUSIONS)))
    kernels[rows, arrays.kernel_col] = arrays.kernel
    return kernels


@pytest.mark.parametrize("seed", range(5))
def test_the_kernels_are_the_diffusion_series_and_their_columns_sum_to_one(seed):
    problem = random_problem(seed, num_ops=20, num_devices=3, costs="distinct")
    kernels = dense_kernels(problem)
    np.testing.assert_allclose(kernels.sum(axis=0), 1.0, atol=1e-5)
    expected = np.stack(PlainProcess(problem).kernels, axis=-1)
    np.testing.assert_allclose(kernels, expected, atol=1e-6)


def test_large_graphs_have_no_kernels_and_affinities_of_zero(monkeypatch):
    problem = random_problem(3, num_ops=40, num_devices=3, costs="distinct")
    assert dense_kernels(problem).any()
    monkeypatch.setattr(view_module, "LARGE", 10)
    assert not dense_kernels(problem).any()
    view, columns = make_view(problem), slice(DEVICE.diffusion_near, DEVICE.diffusion_near + 3)
    policy = DualPolicy(sel_hidden=4, plc_hidden=4)
    record = policy.rollout(view, 1, None, np.random.default_rng(0)).record
    assert not record.device_x[..., columns].any()


def test_the_kernel_of_two_ops_by_hand():
    problem = build(graph_of([1, 1], [(0, 1, 1)]), cluster_of([1.0, 1.0]))
    arrays = make_view(problem).arrays
    assert arrays.kernel_ptr.tolist() == [0, 2, 4]
    assert arrays.kernel_col.tolist() == [0, 1, 0, 1]
    # S swaps the two: even powers of 0.6 stay, odd ones go over.
    assert arrays.kernel[0, 0] == pytest.approx(1 / 1.6)
    assert arrays.kernel[1, 0] == pytest.approx(0.6 / 1.6)


# --- Device classes -----------------------------------------------------------------------------


def classes_of(cluster: Cluster, graph: DataflowGraph | None = None) -> list[int]:
    return device_classes(build(graph or graph_of([1e9, 1e9], [(0, 1, 1e6)]), cluster)).tolist()


@pytest.mark.parametrize("num_devices", [1, 2, 5])
def test_devices_of_a_uniform_cluster_are_one_class(num_devices):
    assert classes_of(preset(name="p100x4", num_devices=num_devices)) == [0] * num_devices


def test_a_mixed_cluster_has_a_class_for_each_generation():
    assert classes_of(preset(name="mixed", num_devices=6)) == [0, 1, 0, 1, 0, 1]


def test_every_device_of_the_cube_mesh_is_a_class_of_its_own():
    # No two V100s of a DGX-1 have equal links to every third one.
    assert classes_of(preset(name="v100x8")) == list(range(8))


def test_four_of_the_cube_mesh_are_classes_by_their_links():
    # Doubled links: 0-3 and 1-2 and 2-3. Swapping 0 with 1, say, would move the link 0-3.
    assert classes_of(preset(name="v100x8", num_devices=4)) == [0, 1, 2, 3]


def test_one_unequal_link_or_memory_size_tells_devices_apart():
    latency = np.ones((3, 3))
    latency[0, 1] = 2
    assert classes_of(cluster_of([1e3] * 3, latency_s=latency)) == [0, 1, 2]
    latency[1, 0] = 2  # both directions: 0 and 1 can be swapped again
    assert classes_of(cluster_of([1e3] * 3, latency_s=latency)) == [0, 0, 2]
    memory = [1e9, 2e9, 1e9]
    assert classes_of(cluster_of([1e3] * 3, memory_bytes=memory)) == [0, 1, 0]


def test_devices_of_one_host_are_a_class_and_so_are_hosts_of_one_device():
    assert classes_of(cluster_of([1e3] * 5, hosts=(0, 0, 1, 1, 2))) == [0, 0, 2, 2, 4]
    assert classes_of(cluster_of([1e3] * 4, hosts=(0, 1, 1, 2))) == [0, 1, 1, 0]


def test_a_kind_of_op_that_does_not_occur_tells_nothing_apart():
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[[], ["a"]])
    assert classes_of(cluster, graph_of([1, 1], kinds="b")) == [0, 0]
    assert classes_of(cluster, graph_of([1, 1], kinds=["a", "b"])) == [0, 1]


def test_given_costs_make_all_devices_equal():
    graph = random_problem(0, num_ops=5, given_costs=True).graph
    assert classes_of(preset(name="mixed"), graph) == [0, 0, 0, 0]


# --- Static features ----------------------------------------------------------------------------


def test_static_features_of_a_small_graph_by_hand():
    # 0 -> 1 (4 s), 0 -> 2 (2 s), 1 -> 3 (1 s), 2 -> 3 (3 s); work 1, 4, 2, 3 s.
    graph = graph_of([1, 4, 2, 3], [(0, 1, 4, 0), (0, 2, 2, 1), (1, 3, 1), (2, 3, 3)])
    view = make_view(build(graph, cluster_of([1.0, 1.0])))
    features = {name: view.op_features[:, i].tolist() for i, name in enumerate(OP_FEATURES)}
    # The longest path without transfers is 0, 1, 3: 8 s; half the work is 5 s. Scale: 8 s.
    # With transfers it is 0, 1, 3 too: 13 s. The largest transfer: 4 s.
    expected = {
        "compute": [1 / 8, 4 / 8, 2 / 8, 3 / 8],
        "b_level": [13 / 13, 8 / 13, 8 / 13, 3 / 13],
        "t_level": [0, 5 / 13, 3 / 13, 10 / 13],
        "criticality": [1, 1, 11 / 13, 1],
        "incoming": [0, 4 / 4, 2 / 4, 4 / 4],
        "outgoing": [6 / 4, 1 / 4, 3 / 4, 0],
        "largest_incoming": [0, 4 / 4, 2 / 4, 3 / 4],
        "largest_outgoing": [4 / 4, 1 / 4, 3 / 4, 0],
        "fan_in": np.log([1, 2, 2, 3]).tolist(),
        "fan_out": np.log([3, 2, 2, 1]).tolist(),
        "depth": [0, 1 / 2, 1 / 2, 1],
        "relative_compute": [1 / 4, 1, 2 / 4, 3 / 4],
        "is_source": [1, 0, 0, 0],
        "is_sink": [0, 0, 0, 1],
    }
    assert set(features) == set(expected)
    for name, values in expected.items():
        assert features[name] == pytest.approx(values), name
    assert view.edge_features[:, 0].tolist() == [1, 1 / 2, 1 / 4, 3 / 4]
    assert view.to_sink.tolist() == [1, 3, 3, -1]
    assert view.to_source.tolist() == [-1, 0, 0, 1]


def test_a_region_read_by_two_ops_is_sent_once_and_comes_in_twice():
    graph = graph_of([1, 1, 1], [(0, 1, 4), (0, 2, 4)])
    view = make_view(build(graph, cluster_of([1.0, 1.0])))
    assert view.op_features[:, OP_FEATURES.index("outgoing")].tolist() == [1, 0, 0]
    assert view.op_features[:, OP_FEATURES.index("incoming")].tolist() == [0, 1, 1]


def test_a_problem_without_any_costs_has_finite_features():
    problem = build(graph_of([0, 0], [(0, 1, 0)]), cluster_of([1.0, 1.0]))
    view = make_view(problem)
    decisions = make_policy().rollout(view, 2, None, np.random.default_rng(0))
    for array in (view.op_features, view.edge_features, decisions.record.device_x):
        assert np.isfinite(array).all()


# --- Scale --------------------------------------------------------------------------------------


def times(problem: Problem, factor: float) -> Problem:
    """The same problem in which everything takes ``factor`` times as long."""
    graph = problem.graph
    longer = dataclasses.replace(
        graph,
        ops=dataclasses.replace(graph.ops, flops=graph.ops.flops * factor),
        edges=dataclasses.replace(graph.edges, bytes=graph.edges.bytes * factor),
    )
    cluster = problem.cluster
    return build(longer, dataclasses.replace(cluster, latency_s=cluster.latency_s * factor))


@pytest.mark.parametrize("costs", ["tied", "distinct"])
@pytest.mark.parametrize("seed", range(6))
def test_a_thousand_times_faster_problem_looks_the_same(seed, costs):
    problem = random_problem(seed, num_ops=20, num_devices=3, costs=costs, given_costs=False)
    views = [make_view(problem), make_view(times(problem, 2.0**-10))]
    np.testing.assert_allclose(views[0].op_features, views[1].op_features, atol=1e-6)
    np.testing.assert_allclose(views[0].edge_features, views[1].edge_features, atol=1e-6)
    policy = make_policy()
    one = policy.rollout(views[0], 3, None, np.random.default_rng(seed))
    other = policy.follow(views[1], one.op, one.device)
    rows = int(one.record.candidate_ptr[:, -1].min())
    assert rows >= 20
    for column in ("candidate_ptr", "device_mask", "device_x"):
        left, right = getattr(one.record, column), getattr(other.record, column)
        np.testing.assert_allclose(left, right, atol=1e-5, err_msg=column)
    for column in ("candidate_op", "candidate_x"):
        left, right = getattr(one.record, column)[:, :rows], getattr(other.record, column)[:, :rows]
        np.testing.assert_allclose(left, right, atol=1e-5, err_msg=column)


@pytest.mark.parametrize("columns", ["SEL", "SEL_GROUP", "DEVICE", "DEVICE_GROUP"])
def test_every_feature_is_written_under_its_name_in_one_place(columns):
    written: list[int] = []
    for node in ast.walk(ast.parse(Path(features_module.__file__).read_text())):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            for name, others in re.findall(rf"\b{columns}\.(\w+)( \+ k)?", ast.unparse(node.slice)):
                first = getattr(getattr(features_module, columns), name)
                written += range(first, first + (len(DIFFUSIONS) if others else 1))
    assert sorted(written) == list(getattr(features_module, columns))
