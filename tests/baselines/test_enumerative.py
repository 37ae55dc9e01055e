"""The enumerative optimizer against its description, executed literally, and what is ours in it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.baselines import Enumerative
from doppler.baselines.enumerative import distances
from doppler.baselines.levels import b_level_priority
from doppler.cluster import Cluster, preset
from doppler.graph import DataflowGraph, Edges, Inputs, Ops
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError


def enumerated(problem: Problem) -> list[int]:
    with WorkConserving().open(problem) as session:
        result = Enumerative().place(session, np.random.default_rng(0))
        assert result.evaluations == session.evaluations
        return result.placement.device.tolist()


# --- The description, literally -----------------------------------------------------------------


class Original:
    """EINSUM.md's pseudocode for nodes of at most as many blocks as there are devices.

    Node numbers are a topological order. Knows nothing but the graph and a table of distances.
    """

    def __init__(self, graph: DataflowGraph, distance: np.ndarray) -> None:
        self.distance, self.num_devices = distance, len(distance)
        self.place: dict[object, int] = {}
        self.contributors: dict[object, set] = {}
        self.consumers: dict[object, set] = {}
        self.bytes: dict[object, float] = {}
        self.reads: dict[int, list] = {v: [] for v in range(graph.num_ops)}
        self.blocks: dict[int, list[int]] = {}
        self.formations: dict[int, list[int]] = {}
        ops, edges = graph.ops, graph.edges
        order = sorted(range(graph.num_ops), key=lambda v: (ops.node[v], ops.block[v]))
        for v in order:
            self.blocks.setdefault(int(ops.node[v]), []).append(v)
        for e in range(len(edges)):
            src, dst = int(edges.src[e]), int(edges.dst[e])
            is_formation = ops.kinds[dst] == "formation"
            piece = ("of", dst) if is_formation else (src, int(edges.region[e]))
            self._read(dst, piece, src, edges.bytes[e])
            behind = self.formations.setdefault(int(ops.node[src]), [])
            if is_formation and dst not in behind:
                behind.append(dst)
        for behind in self.formations.values():
            behind.sort(key=order.index)
        for i, ops_of_input in enumerate(graph.inputs.consumers):
            self.place["input", i] = int(graph.inputs.block[i]) % self.num_devices
            for v in ops_of_input:
                self._read(v, ("input", i), ("input", i), graph.inputs.bytes[i])

    def _read(self, v, piece, contributor, num_bytes) -> None:
        if piece not in self.reads[v]:
            self.reads[v].append(piece)
        self.contributors.setdefault(piece, set()).add(contributor)
        self.consumers.setdefault(piece, set()).add(v)
        self.bytes[piece] = num_bytes

    def bytes_in(self, v: int, dev: int) -> float:
        total = 0.0
        for piece in self.reads[v]:
            if any(self.place.get(other) == dev for other in self.consumers[piece] - {v}):
                continue
            for s in {self.place[u] for u in self.contributors[piece]} - {dev}:
                total += self.bytes[piece] * self.distance[s, dev]
        return total

    def run(self) -> list[int]:
        for node in sorted(self.blocks):
            blocks = self.blocks[node]
            if all(v in self.place for v in blocks):
                continue
            best, kept = np.inf, None
            for chosen in permutations(range(self.num_devices), len(blocks)):
                total = sum(self.bytes_in(v, d) for v, d in zip(blocks, chosen, strict=True))
                trial = dict(zip(blocks, chosen, strict=True))
                self.place.update(trial)
                for f in self.formations.get(node, []):
                    costs = [self.bytes_in(f, d) for d in range(self.num_devices)]
                    trial[f] = int(np.argmin(costs))
                    total += costs[trial[f]]
                for v in trial:
                    self.place.pop(v, None)
                if total < best:
                    best, kept = total, trial
            self.place.update(kept)
        return [self.place[v] for v in range(len(self.reads))]


def random_program(
    rng: np.random.Generator, num_devices: int, most_blocks: int
) -> tuple[DataflowGraph, DataflowGraph]:
    """Nodes of random numbers of blocks, some with a formation behind; op ids in random order.

    Returns the graph, and the same one with every ``num_devices`` blocks of a node as a node of
    their own; a formation block adds up blocks of one such group.
    """
    names: list[tuple[int, int, int, str]] = []  # node, group, block, kind
    edges: list[tuple[int, int, float, int]] = []
    finished: list[int] = []

    def add(node: int, group: int, block: int, kind: str) -> int:
        names.append((node, group, block, kind))
        return len(names) - 1

    for node in range(0, 2 * int(rng.integers(2, 6)), 2):
        num = int(rng.integers(1, most_blocks + 1))
        ops = [add(node, b // num_devices, b, "op") for b in range(num)]
        for v in ops:
            for u in rng.permutation(finished)[: rng.integers(0, 4)].tolist():
                for r in rng.permutation(2)[: rng.integers(1, 3)].tolist():
                    edges.append((u, v, 1.0 + (7 * u + 3 * r) % 5, r))
        if rng.random() < 0.5:
            width, partials = int(rng.integers(1, 4)), {}
            for b, v in enumerate(ops):
                group = b // num_devices
                partials.setdefault((group, b % num_devices // width), []).append(v)
            ops = [add(node + 1, key[0], b, "formation") for b, key in enumerate(partials)]
            for f, of_f in zip(ops, partials.values(), strict=True):
                size = float(rng.integers(1, 5))
                edges += [(v, f, size, 0) for v in of_f]
        finished += ops
    num_ops, num_inputs = len(names), int(rng.integers(0, 5))
    new = rng.permutation(num_ops)
    node, group, block, kinds = zip(*(names[v] for v in np.argsort(new)), strict=True)
    src, dst, size, region = zip(*edges, strict=True) if edges else ((), (), (), ())
    readers = new[[v for v in range(num_ops) if names[v][3] == "op"]]
    inputs = Inputs.make(
        names=[f"input{i}" for i in range(num_inputs)],
        block=rng.integers(0, 7, num_inputs),
        bytes=rng.integers(1, 9, num_inputs).astype(float),
        consumers=[rng.permutation(readers)[:3].tolist() for _ in range(num_inputs)],
    )
    whole, split = (
        DataflowGraph(
            name="program",
            ops=Ops.make(flops=np.ones(num_ops), kinds=kinds, node=number, block=block),
            edges=Edges.make(src=new[list(src)], dst=new[list(dst)], bytes=size, region=region),
            inputs=inputs,
        )
        for number in (node, 100 * np.array(node) + group)
    )
    return whole, split


def machine(num_devices: int, rng: np.random.Generator, *, uniform: bool) -> Cluster:
    shape = (num_devices, num_devices)
    bandwidth = np.ones(shape) if uniform else rng.choice([1.0, 2.0, 4.0], shape)
    return cluster_of([1.0] * num_devices, bytes_per_s=bandwidth)


def table_of_distances(cluster: Cluster) -> np.ndarray:
    num = cluster.num_devices
    between = [cluster.bytes_per_s[s, d] for s in range(num) for d in range(num) if s != d]
    return np.array(
        [
            [0.0 if s == d else max(between) / cluster.bytes_per_s[s, d] for d in range(num)]
            for s in range(num)
        ]
    )


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mesh"])
@pytest.mark.parametrize("num_devices", [2, 3, 4, 5])
def test_it_decides_as_the_original_where_no_node_has_more_blocks_than_there_are_devices(
    num_devices, uniform
):
    formations = apart = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, num_devices, uniform])
        graph, _ = random_program(rng, num_devices, num_devices)
        cluster = machine(num_devices, rng, uniform=uniform)
        expected = Original(graph, table_of_distances(cluster)).run()
        assert enumerated(build(graph, cluster)) == expected, seed
        formations += graph.ops.kinds.count("formation")
        ends = zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True)
        apart += sum(expected[src] != expected[dst] for src, dst in ends)
    assert formations > 20 and apart > 30, "nothing was decided"


@pytest.mark.parametrize("num_devices", [2, 3])
def test_every_so_many_blocks_as_there_are_devices_are_assigned_like_a_node(num_devices):
    groups = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, num_devices])
        whole, split = random_program(rng, num_devices, 3 * num_devices + 1)
        cluster = machine(num_devices, rng, uniform=False)
        expected = Original(split, table_of_distances(cluster)).run()
        assert enumerated(build(whole, cluster)) == expected, seed
        groups += len(np.unique(split.ops.node)) - len(np.unique(whole.ops.node))
    assert groups > 20, "no node had more blocks than there are devices"


# --- By hand ------------------------------------------------------------------------------------


def with_nodes(
    graph: DataflowGraph, node: Sequence[int], input_block: Sequence[int] = ()
) -> DataflowGraph:
    """Blocks are numbered by op id."""
    inputs = replace(graph.inputs, block=np.array(input_block, dtype=np.int64))
    return replace(graph, ops=replace(graph.ops, node=np.array(node)), inputs=inputs)


def test_blocks_go_to_their_inputs_and_a_formation_to_the_nearest_of_its_partials():
    # Block b of the node reads input block 2 - b; moving from device 2 costs four times as much.
    bandwidth = np.full((3, 3), 4.0)
    bandwidth[2, :] = 1.0
    graph = with_nodes(
        graph_of(
            [1.0] * 4,
            [(0, 3, 2.0), (1, 3, 2.0), (2, 3, 2.0)],
            kinds=["op", "op", "op", "formation"],
            inputs=[(8.0, [0]), (8.0, [1]), (8.0, [2])],
        ),
        [0, 0, 0, 1],
        [2, 1, 3],  # the last lies on 3 mod 3
    )
    problem = build(graph, cluster_of([1.0] * 3, bytes_per_s=bandwidth))
    assert enumerated(problem) == [2, 1, 0, 2]


def test_contributions_of_one_device_are_sent_once():
    # Inputs keep partial 0 on device 0, partials 1 and 2 on device 1. Device 1 sends 8 or device 0
    # does: a tie, which device 0 wins. Sent one by one, the partials of device 1 would outweigh it.
    graph = with_nodes(
        graph_of(
            [1.0] * 4,
            [(v, 3, 8.0) for v in range(3)],
            kinds=["op"] * 3 + ["formation"],
            inputs=[(100.0, [0]), (100.0, [1, 2])],
        ),
        [0, 0, 0, 1],
        [0, 1],
    )
    assert enumerated(build(graph, cluster_of([1.0] * 2))) == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("input_bytes", "expected"), [(7.0, [0, 1, 0, 1, 0]), (9.0, [0, 1, 1, 0, 0])]
)
def test_a_formation_over_several_groups_counts_with_the_last_of_them(input_bytes, expected):
    # Blocks 0 and 1, then 2 and 3: nothing pulls the first two. The formation adds up blocks 0 and
    # 2, which costs 8 unless block 2 comes to device 0, away from its input on device 1.
    graph = with_nodes(
        graph_of(
            [1.0] * 5,
            [(0, 4, 8.0), (2, 4, 8.0)],
            kinds=["op"] * 4 + ["formation"],
            inputs=[(input_bytes, [2])],
        ),
        [0, 0, 0, 0, 1],
        [1],
    )
    assert enumerated(build(graph, cluster_of([1.0] * 2))) == expected


def test_the_distance_is_that_of_the_link():
    mesh = distances(build(graph_of([1.0]), preset(name="v100x8")))
    assert np.diag(mesh).tolist() == [0.0] * 8
    assert mesh[0, 3] == 1.0  # two links
    assert mesh[0, 1] == 2.0  # one
    assert mesh[0, 5] == pytest.approx(50 / 12)  # none: over PCI Express
    assert (
        distances(build(graph_of([1.0]), preset(name="p100x4"))).tolist()
        == (1.0 - np.eye(4)).tolist()
    )


def test_links_of_infinite_bandwidth_are_all_alike():
    problem = build(graph_of([1.0]), cluster_of([1.0] * 2, bytes_per_s=np.inf))
    assert distances(problem).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_blocks_go_only_where_their_kind_runs_and_have_room():
    # Only devices 1 and 3 run the node's kind: its four blocks make two rounds of two.
    elsewhere = [["a"], [], ["a"], []]
    graph = with_nodes(graph_of([1.0] * 4, kinds="a"), [0] * 4)
    cluster = cluster_of([1.0] * 4, unsupported_kinds=elsewhere)
    assert enumerated(build(graph, cluster)) == [1, 3, 1, 3]


@pytest.mark.parametrize(
    ("memory_bytes", "expected", "evaluations"),
    [
        ([20.0, 20.0], [0, 1, 0, 1], 1),  # enough everywhere
        ([12.0, 12.0], [0, 1, 0, 1], 1),  # just enough
        ([20.0, 9.0], [0, 1, 0, 0], 2),  # room for one on device 1: the second group is two
        ([24.0, 5.0], [0, 0, 0, 0], 2),
    ],
)
def test_what_does_not_fit_in_memory_is_assigned_once_more(memory_bytes, expected, evaluations):
    graph = with_nodes(graph_of([1.0] * 4, output_bytes=[6.0] * 4), [0] * 4)
    problem = build(graph, cluster_of([1.0] * 2, memory_bytes=memory_bytes))
    with WorkConserving().open(problem) as session:
        result = Enumerative().place(session, np.random.default_rng(0))
        assert result.evaluations == session.evaluations == evaluations
    assert result.placement.device.tolist() == expected
    assert np.isfinite(result.makespan_s)


def test_more_than_eight_devices_share_a_node_evenly():
    graph = with_nodes(graph_of([1.0] * 30), [0] * 30)
    devices = enumerated(build(graph, cluster_of([1.0] * 12)))
    assert sorted(devices[:12]) == sorted(devices[12:24]) == list(range(12))
    assert len(set(devices[24:])) == 6


def test_priorities_are_those_of_the_b_level():
    graph, _ = random_program(np.random.default_rng(0), 3, 5)
    problem = build(graph, cluster_of([1.0] * 3))
    with WorkConserving().open(problem) as session:
        placement = Enumerative().place(session, np.random.default_rng(0)).placement
    assert placement.priority.tolist() == b_level_priority(problem).tolist()


def test_a_graph_without_nodes_is_refused_by_name():
    problem = build(graph_of([1.0, 1.0]), cluster_of([1.0]))
    with pytest.raises(InputError, match=r"^graph 'test': op 0 \('op0'\) names no node, [^\n]*$"):
        enumerated(problem)


def test_nodes_that_need_each_other_are_refused():
    graph = with_nodes(graph_of([1.0] * 3, [(0, 1, 1.0), (1, 2, 1.0)]), [4, 7, 4])
    with pytest.raises(InputError, match=r"^graph 'test': nodes (4 -> 7 -> 4|7 -> 4 -> 7) need"):
        enumerated(build(graph, cluster_of([1.0] * 2)))
