"""Problems for tests: small ones written by hand, random ones from a seed, published graphs.

Times are whole numbers of seconds and speeds are powers of two, so that sums of times are exact:
what is simultaneous on paper is simultaneous in floating point too.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from doppler.baselines.levels import b_level_priority
from doppler.cluster import Cluster, Device, Link, SharedResource, connected
from doppler.graph import DataflowGraph
from doppler.graph.dataflow import Edges, GivenCosts, Inputs, Ops
from doppler.graph.levels import depth
from doppler.problem import Placement, Problem, build
from doppler.support.errors import InputError
from doppler.system import System

REPOSITORY = Path(__file__).resolve().parents[1]
FAMILIES = ("layered", "series_parallel", "irregular")
KINDS = ("a", "b", "c")

# One (src, dst, bytes) or (src, dst, bytes, region) per edge.
EdgeList = Sequence[tuple[int, int, float] | tuple[int, int, float, int]]
Costs = Literal["tied", "distinct"]


def published(name: str) -> Path:
    """A file or folder of others' problems and results; skips the test where it is not at hand."""
    folder = Path(os.environ.get("DOPPLER_SHARED") or REPOSITORY.parent / "shared")
    if not (folder / name).exists():
        pytest.skip(f"no {name} (set DOPPLER_SHARED to the folder of others' problems)")
    return folder / name


def published_graph(name: str) -> Path:
    """The path of a published graph."""
    return published(f"graphs/{name}")


def problem_set(name: str) -> Path:
    """The folder of a set of others' problems."""
    return published(f"sets/{name}")


def cluster_of(
    speeds: Sequence[float],
    *,
    latency_s: float | np.ndarray = 0.0,
    bytes_per_s: float | np.ndarray = 1.0,
    memory_bytes: float | Sequence[float] = np.inf,
    unsupported_kinds: Sequence[Sequence[str]] | None = None,
    **hosts,
) -> Cluster:
    """Devices that do ``speeds[d]`` flop/s and wait for nothing else; hosts: fields of Cluster."""
    num = len(speeds)
    latency = np.broadcast_to(latency_s, (num, num))
    bandwidth = np.broadcast_to(bytes_per_s, (num, num))
    memory = np.broadcast_to(memory_bytes, num)
    devices = [
        Device(
            name=f"device{d}",
            flop_per_s={"f32": speeds[d]},
            memory_bytes_per_s=np.inf,
            launch_overhead_s=0.0,
            memory_bytes=float(memory[d]),
            unsupported_kinds=unsupported_kinds[d] if unsupported_kinds else (),
        )
        for d in range(num)
    ]
    cluster = connected(
        name="test",
        devices=devices,
        link=lambda s, d: Link(bytes_per_s=bandwidth[s, d], latency_s=latency[s, d]),
    )
    return replace(cluster, **hosts)


def graph_of(
    flops: Sequence[float],
    edges: EdgeList = (),
    *,
    output_bytes: Sequence[float] | None = None,
    kinds: Sequence[str] | str = "op",
    inputs: Sequence[tuple[float, Sequence[int]]] = (),
) -> DataflowGraph:
    """A graph written by hand; inputs are (bytes, consumers)."""
    rows = [(*edge, 0) if len(edge) == 3 else edge for edge in edges]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return DataflowGraph(
        name="test",
        ops=Ops.make(flops=flops, output_bytes=output_bytes, kinds=kinds),
        edges=Edges.make(src=columns[0], dst=columns[1], bytes=columns[2], region=columns[3]),
        inputs=Inputs.make(
            names=[f"input{i}" for i in range(len(inputs))],
            bytes=[num_bytes for num_bytes, _ in inputs],
            consumers=[ops for _, ops in inputs],
        ),
    )


def layered_edges(
    num_ops: int, rng: np.random.Generator, *, width: int, fan_in: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ops in layers of ``width``; each reads 1 to ``fan_in`` random ops of the layer before."""
    op = np.repeat(np.arange(width, num_ops), rng.integers(1, fan_in + 1, max(0, num_ops - width)))
    producer = (op // width - 1) * width + rng.integers(0, width, len(op))
    pairs = np.unique(op * num_ops + producer)
    return pairs % num_ops, pairs // num_ops


def _series_parallel_edges(num_ops: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Grown from one edge: an op is put into an edge, or beside it."""
    if num_ops < 2:
        return []
    edges, position = [(0, 1)], [0.0, 1.0]
    for v in range(2, num_ops):
        i = int(rng.integers(len(edges)))
        src, dst = edges[i]
        if rng.random() < 0.5:
            edges.pop(i)
        edges += [(src, v), (v, dst)]
        position.append(rng.uniform(position[src], position[dst]))
    rank = np.argsort(np.argsort(position))
    return [(int(rank[src]), int(rank[dst])) for src, dst in edges]


def _irregular_edges(num_ops: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Every op reads a few of all the ops before it; hubs are popular."""
    edges = []
    for v in range(1, num_ops):
        num = min(v, int(rng.integers(0, 5)))
        popularity = 1.0 / (1.0 + np.arange(v))
        chosen = rng.choice(v, size=num, replace=False, p=popularity / popularity.sum())
        edges += [(int(u), v) for u in chosen]
    return edges


def _with_regions(
    pairs: list[tuple[int, int]], rng: np.random.Generator, high_bytes: int
) -> list[tuple[int, int, float, int]]:
    """Divide each op's readers among 1 to 3 regions; some read two of them."""
    labels = {src: rng.choice(100, size=rng.integers(1, 4), replace=False) for src, _ in pairs}
    low = 1 if high_bytes > 4 else 0
    size = {
        (src, int(r)): float(rng.integers(low, high_bytes)) for src in labels for r in labels[src]
    }
    edges = []
    for src, dst in pairs:
        num = 2 if len(labels[src]) > 1 and rng.random() < 0.2 else 1
        for r in rng.choice(labels[src], size=num, replace=False):
            edges.append((src, dst, size[src, int(r)], int(r)))
    rng.shuffle(edges)
    return [(int(s), int(d), float(b), int(r)) for s, d, b, r in edges]


def random_graph(
    rng: np.random.Generator, num_ops: int, *, costs: Costs = "tied", family: str | None = None
) -> DataflowGraph:
    """A graph with several regions per op, shared ones too, inputs, and three kinds of ops.

    costs: "tied" draws from 0 to 3, so that much happens at once; "distinct" from 1 to a million.
    """
    family = family or str(rng.choice(FAMILIES))
    if family == "layered":
        src, dst = layered_edges(num_ops, rng, width=int(rng.integers(1, 6)), fan_in=3)
        pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    elif family == "series_parallel":
        pairs = _series_parallel_edges(num_ops, rng)
    else:
        pairs = _irregular_edges(num_ops, rng)
    if rng.random() < 0.5:  # ids need not be a topological order
        renamed = rng.permutation(num_ops)
        pairs = [(int(renamed[src]), int(renamed[dst])) for src, dst in pairs]
    low, high = (0, 4) if costs == "tied" else (1, 1_000_000)
    return graph_of(
        rng.integers(low, high, num_ops).tolist(),
        _with_regions(pairs, rng, high),
        output_bytes=rng.integers(low, high, num_ops).tolist(),
        kinds=rng.choice(KINDS, num_ops).tolist(),
        inputs=[
            (float(rng.integers(low, high)), rng.choice(num_ops, size=min(num_ops, 3)).tolist())
            for _ in range(rng.integers(0, 4))
        ],
    )


def random_cluster(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Devices of several speeds, unequal links; every op kind runs on some device."""
    shape = (num_devices, num_devices)
    home = rng.integers(num_devices, size=len(KINDS))  # always runs this kind
    unsupported = [
        [kind for kind, h in zip(KINDS, home, strict=True) if h != d and rng.random() < 0.15]
        for d in range(num_devices)
    ]
    return cluster_of(
        rng.choice([1.0, 1.0, 2.0, 0.5], num_devices).tolist(),
        latency_s=rng.choice([0.0, 0.0, 1.0, 2.0], shape),
        bytes_per_s=rng.choice([0.5, 1.0, 1.0, 2.0], shape),
        unsupported_kinds=unsupported,
    )


def hosted_problem(seed: int, *, costs: Costs = "tied") -> Problem:
    """Two to four hosts of one to three devices each, in no order, with one or two interfaces."""
    rng = np.random.default_rng([seed, 27])
    hosts = rng.permutation(np.repeat(np.arange(num := int(rng.integers(2, 5))), 3))
    hosts = np.append(hosts[: rng.integers(0, 2 * num)], rng.permutation(num))
    cluster = replace(
        random_cluster(rng, len(hosts)),
        hosts=tuple(hosts.tolist()),
        nics=int(rng.integers(1, 3)),
        nic_bytes_per_s=float(rng.choice([0.25, 0.5, 1.0, 2.0])),
        nic_latency_s=float(rng.choice([0.0, 1.0])),
    )
    graph = random_graph(rng, int(rng.integers(5, 40)), costs=costs)
    return build(with_given_costs(graph) if rng.random() < 0.25 else graph, cluster)


def sharing_problem(seed: int, *, room: float = 1.0) -> Problem:
    """A random problem whose devices and links share one to four resources.

    Costs do not tie, as rates divide times in ways that rounding tells apart. In a third of the
    problems devices are on hosts, in a fifth they are cores.

    room: so many times the bytes per second that are drawn for each resource; from 1e6 on nothing
    slows anything down, and what has processors has them no more.
    """
    rng = np.random.default_rng([seed, 57])
    base = hosted_problem(seed, costs="distinct") if seed % 3 == 2 else None
    if base is None:
        base = random_problem(seed, costs="distinct", num_devices=int(rng.integers(2, 6)))
    num = base.num_devices
    pairs = [(s, d) for s in range(num) for d in range(num) if s != d]
    enough, shared = room >= 1e6, []
    if base.has_given_costs:
        room *= 1e10  # what takes 1 s elsewhere takes 1e-10 s
    for i in range(rng.integers(1, 5)):
        devices = tuple(np.flatnonzero(rng.random(num) < 0.6).tolist())
        if devices and rng.random() < 0.4 and not enough:
            shared.append(SharedResource(name=f"processors {i}", devices=devices))
            continue
        links = [pair for pair in pairs if rng.random() < 0.5]
        links += [pair for pair in links if rng.random() < 0.1]  # read and written in one memory
        shared.append(
            SharedResource(
                name=f"memory {i}",
                bytes_per_s=room * float(rng.choice([0.5, 1.0, 2.0, 3.0])),
                devices=devices if rng.random() < 0.7 else (),
                links=tuple(links or pairs[:1]),
            )
        )
    overheads = rng.choice([0.0, 1e5], num).tolist()
    cluster = replace(
        base.cluster,
        devices=tuple(
            replace(one, launch_overhead_s=seconds)
            for one, seconds in zip(base.cluster.devices, overheads, strict=True)
        ),
        shared=tuple(shared),
        cores=base.cluster.num_hosts == 1 and seed % 5 == 1,
    )
    return build(base.graph, cluster)


def random_problem(
    seed: int,
    *,
    num_ops: int | None = None,
    num_devices: int | None = None,
    costs: Costs = "tied",
    identical_devices: bool = False,
    given_costs: bool | None = None,
) -> Problem:
    """A problem from a seed; what is not given is drawn, given costs in one problem of four."""
    rng = np.random.default_rng(seed)
    num_ops = int(rng.integers(1, 40)) if num_ops is None else num_ops
    num_devices = int(rng.integers(1, 6)) if num_devices is None else num_devices
    graph = random_graph(rng, num_ops, costs=costs)
    given = rng.random() < 0.25 if given_costs is None else given_costs
    if given:
        graph = with_given_costs(graph)
    if identical_devices:
        return build(graph, cluster_of([1.0] * num_devices))
    return build(graph, random_cluster(rng, num_devices))


def restricted_problem(
    seed: int, *, num_ops: int, num_devices: int, memory: bool = True, groups: bool = True
) -> Problem:
    """Seconds by device or by kinds of devices, ops that share a device or are pinned to one.

    memory: in one of two it is short. groups: else every op goes where it likes but to other pins.
    """
    for attempt in range(1000):
        rng = np.random.default_rng([seed, attempt])
        cluster = random_cluster(rng, num_devices)
        room = rng.integers(6, 16, num_devices) if memory and rng.random() < 0.5 else np.inf
        devices = [
            replace(device, name=f"{rng.choice(['cpu', 'gpu'])}:{d}", memory_bytes=float(most))
            for d, (device, most) in enumerate(
                zip(cluster.devices, np.broadcast_to(room, num_devices), strict=True)
            )
        ]
        graph = random_graph(rng, num_ops)
        ops = replace(
            graph.ops,
            group=rng.integers(-1, max(1, num_ops // 3), num_ops) if groups else graph.ops.group,
            pinned=np.where(
                rng.random(num_ops) < 0.15, rng.integers(num_devices, size=num_ops), -1
            ),
            node=depth(num_ops, graph.edges.src, graph.edges.dst),
        )
        given = _random_given_costs(graph, num_devices, rng)
        try:
            return build(
                replace(graph, ops=ops, given_costs=given), replace(cluster, devices=tuple(devices))
            )
        except InputError:  # an op or a group with nowhere to go
            continue
    raise AssertionError("nothing can be placed")


def _random_given_costs(
    graph: DataflowGraph, num_devices: int, rng: np.random.Generator
) -> GivenCosts | None:
    """None, of ops, of edges or of both; the same everywhere, or not."""
    ops_s = transfers_s = None
    if rng.random() < 0.6:
        ops_s = rng.choice(
            [0.0, 1.0, 2.0, 3.0, np.inf], (graph.num_ops, num_devices), p=[0.1] + [0.225] * 4
        )
    if rng.random() < 0.6:
        shape = ((), (2, 2))[int(rng.integers(2))]
        transfers_s = rng.integers(0, 4, (len(graph.regions), *shape))[graph.regions.of_edge]
    if ops_s is None and transfers_s is None:
        return None
    return GivenCosts.make(
        op_seconds=ops_s,
        transfer_seconds=transfers_s,
        kinds=("cpu", "gpu") if transfers_s is not None and transfers_s.ndim == 3 else (),
        counts_memory=True,
    )


def problem_without_ties() -> Problem:
    """A source that only device 0 runs, then unequal ops over unequal links: one schedule."""
    graph = graph_of(
        [8, 24, 36, 20, 44, 16, 28, 12],
        [
            *((0, v, 3.0) for v in (1, 2, 3, 4)),
            *((1, 5, 10.0), (2, 5, 7.0), (3, 6, 13.0), (4, 6, 2.0), (5, 7, 5.0), (6, 7, 9.0)),
        ],
        kinds=["source"] + ["op"] * 7,
    )
    latency_s = np.array([[0, 1, 2], [3, 0, 5], [6, 7, 0]]) / 4
    cluster = cluster_of(
        [4.0, 2.0, 1.0], latency_s=latency_s, unsupported_kinds=[[], ["source"], ["source"]]
    )
    return build(graph, cluster)


def with_given_costs(graph: DataflowGraph) -> DataflowGraph:
    """The same graph whose flops and bytes are given costs of 1e-10 s, as in published files."""
    return DataflowGraph(
        name=graph.name,
        ops=graph.ops,
        edges=graph.edges,
        inputs=graph.inputs,
        given_costs=GivenCosts.make(
            op_seconds=graph.ops.flops * 1e-10, transfer_seconds=graph.edges.bytes * 1e-10
        ),
    )


def random_device(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A device [V] for every op and its group, among those that may run it."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    device_V = np.where(able_VD, rng.random(able_VD.shape), -1.0).argmax(axis=1)
    return device_V[problem.arrays.group]


def random_ranking(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A rank [V] for every op; producers come first."""
    edges, num = problem.graph.edges, problem.num_ops
    waits_for = np.bincount(edges.dst, minlength=num)
    candidates = np.flatnonzero(waits_for == 0).tolist()
    rank_V = np.empty(num, dtype=np.int64)
    for rank in range(num):
        v = candidates.pop(int(rng.integers(len(candidates))))
        rank_V[v] = rank
        for dst in edges.dst[edges.src == v]:
            waits_for[dst] -= 1
            if waits_for[dst] == 0:
                candidates.append(int(dst))
    return rank_V


def random_placement(problem: Problem, seed: int) -> Placement:
    """Random devices; priorities that respect precedence in three placements of four."""
    rng = np.random.default_rng(seed)
    device_V = random_device(problem, rng)
    if rng.random() < 0.75:
        return Placement.make(problem, device_V, random_ranking(problem, rng))
    return Placement.make(problem, device_V, rng.permutation(problem.num_ops))


def optimum(problem: Problem, system: System, *, orders: bool) -> float:
    """The least makespan over all placements, and over all priorities or in b_level order."""
    able = [np.flatnonzero(np.isfinite(row)) for row in problem.arrays.op_seconds]
    device_BV = np.array(list(product(*able)))
    num = problem.num_ops
    priorities = list(permutations(range(num))) if orders else [b_level_priority(problem)]
    with system.open(problem) as session:
        return min(
            session.measure(device_BV, np.tile(priority, (len(device_BV), 1))).cost_s().min()
            for priority in priorities
        )
