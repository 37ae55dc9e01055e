"""Clustering: merge the ends of heavy edges under a load cap, then list-schedule the clusters.

Shape suffixes: B candidates, V ops, E edges, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import Decisions, execute_best, make_decisions
from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import (
    begin,
    best_device,
    earliest,
    make_schedule,
    overflow_bytes,
    queue_keys,
    queue_released,
    schedule,
    tie_seconds,
)
from doppler.compiled import compiled
from doppler.compiled.draws import uniform
from doppler.compiled.heap import heap_pop
from doppler.errors import InputError
from doppler.problem import Problem
from doppler.system import Session

# Loads up to which clusters are merged, as shares of total work / devices. Measured: caps above 1
# are needed (they let the threshold alone decide), caps below 0.1 bring nothing.
_LOAD_CAPS = (0.1, 4.0)
# Largest standard deviation of the logarithm of the factors on b_levels. Measured: without other
# orders than that of b_level a thousand candidates end 0.7% higher.
_ORDER_NOISE = 1.0
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Merge clusters along edges of falling transfer seconds, place whole clusters, keep the best.

    A candidate is three random numbers: the weight below which no edge merges its ends, the load
    that no merged cluster may exceed, and how far the order of ops deviates from that of b_levels.
    Ops are then list-scheduled: the first op of a cluster takes all of it to the device on which,
    by the start of this op and the work that is booked, the cluster would end first. An op leaves
    its cluster only where it does not fit. evaluations: candidates, each executed once. The order
    in which ops were taken is their priority.

    Source: edge zeroing is Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989; a cap on loads in place of his estimate of the makespan, the mapping and
    the search are ours.
    """

    evaluations: int
    uses_order: ClassVar[bool] = True
    needs_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise InputError(f"baseline.clustering.evaluations: at least 1, got {self.evaluations}")

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """See contract.Baseline."""
        best = None
        for done in range(0, self.evaluations, _BATCH):
            num = min(_BATCH, self.evaluations - done)
            found = execute_best(session, draw_clusterings(session.problem, num, rng), rng)
            if best is None or found.makespan_s < best.makespan_s:
                best = found
        assert best is not None
        return SearchResult(
            placement=best.placement, makespan_s=best.makespan_s, evaluations=self.evaluations
        )


def draw_clusterings(problem: Problem, num: int, rng: np.random.Generator) -> Decisions:
    """``num`` random candidates, scheduled."""
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    low, high = np.log(_LOAD_CAPS)
    share_B = np.exp(rng.uniform(low, high, num))
    noise_B1 = rng.uniform(0.0, _ORDER_NOISE, (num, 1))
    normal_BV = rng.standard_normal((num, problem.num_ops))
    return schedule_clusterings(
        problem,
        least_weight_B=rng.choice(np.unique(np.append(weight_E, np.inf)), num),
        cap_B=share_B * problem.mean_op_seconds.sum() / problem.num_devices,
        level_BV=b_levels(problem) * np.exp(noise_B1 * normal_BV),
        rng=rng,
    )


def schedule_clusterings(
    problem: Problem,
    *,
    least_weight_B: NDArray[np.float64],
    cap_B: NDArray[np.float64],
    level_BV: NDArray[np.float64],
    rng: np.random.Generator,
) -> Decisions:
    """Merge clusters and list-schedule ops; ties of edges and of devices are drawn.

    least_weight_B: seconds; lighter edges merge nothing. cap_B: seconds; the most that a merged
    cluster may take on the device that runs it fastest. level_BV: candidates of large level first.
    """
    num = len(cap_B)
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    decisions = make_decisions(num, problem)
    _schedule_batch(
        problem.arrays,
        make_schedule(problem, tie_seconds(level_BV)),
        _make_clusters(problem),
        np.argsort(queue_keys(weight_E, num, rng), axis=1),
        (weight_E >= least_weight_B[:, None]).sum(axis=1),
        cap_B,
        -level_BV,
        rng.integers(0, 2**62, size=num),
        decisions,
    )
    return decisions


class _Clusters(NamedTuple):
    """Buffers of one clustering: a forest, whose roots stand for their clusters."""

    src: NDArray[np.int64]  # [E]
    dst: NDArray[np.int64]  # [E]
    parent: NDArray[np.int64]  # [V] itself for a root
    load: NDArray[np.float64]  # [V, D] of roots: seconds of their ops, inf where one cannot run
    home: NDArray[np.int64]  # [V] of roots: device, -1 until one is chosen
    booked: NDArray[np.float64]  # [D] seconds of the clusters that live there


def _make_clusters(problem: Problem) -> _Clusters:
    num_ops, num_devices = problem.num_ops, problem.num_devices
    return _Clusters(
        src=problem.graph.edges.src.copy(),
        dst=problem.graph.edges.dst.copy(),
        parent=np.zeros(num_ops, np.int64),
        load=np.zeros((num_ops, num_devices)),
        home=np.zeros(num_ops, np.int64),
        booked=np.zeros(num_devices),
    )


@compiled
def _schedule_batch(p, s, clusters, edge_BE, num_edges_B, cap_B, key_BV, seeds_B, decisions):
    for b in range(len(seeds_B)):
        _merge(p, clusters, edge_BE[b], num_edges_B[b], cap_B[b])
        size, num_released = 0, begin(p, s, b)
        for step in range(len(s.ops)):
            size = queue_released(s, key_BV[b], size, num_released)
            v = heap_pop(s.candidates, 0, size)
            size -= 1
            root = _root(clusters.parent, v)
            if clusters.home[root] < 0:
                _settle(p, s, clusters, v, root, seeds_B[b], -1 - step * len(s.devices))
            d = best_device(p, s, v, clusters.home[root], False, seeds_B[b], step)
            num_released = schedule(p, s, v, d, False, b, step, decisions)


@compiled
def _merge(p, clusters, edge_E, num_edges, cap_s):
    """Join clusters along the first edges, where one device can run both within the cap."""
    num_ops, num_devices = p.op_seconds.shape
    load = clusters.load
    for d in range(num_devices):
        clusters.booked[d] = 0.0
    for v in range(num_ops):
        clusters.parent[v] = v
        clusters.home[v] = -1
        for d in range(num_devices):
            load[v, d] = p.op_seconds[v, d]
    for i in range(num_edges):
        a = _root(clusters.parent, clusters.src[edge_E[i]])
        b = _root(clusters.parent, clusters.dst[edge_E[i]])
        least = np.inf
        for d in range(num_devices):
            least = min(least, load[a, d] + load[b, d])
        if a != b and least <= cap_s:
            clusters.parent[b] = a
            for d in range(num_devices):
                load[a, d] += load[b, d]


@compiled
def _root(parent, v):
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@compiled
def _settle(p, s, clusters, v, root, seed, draw):
    """Choose the home of a cluster whose first op is v."""
    best, tied, least, time = 0, 0, np.inf, np.inf
    for d in range(len(s.devices)):
        if clusters.load[root, d] == np.inf:
            continue
        over = overflow_bytes(p, s, v, d)
        start, _ = earliest(p, s, v, d, False)
        finish = max(start, clusters.booked[d]) + clusters.load[root, d]
        if over < least or (over == least and finish < time - s.tie_s):
            best, tied, least, time = d, 1, over, finish
        elif over == least and finish <= time + s.tie_s:
            tied += 1
            if uniform(seed, draw - d) * tied < 1.0:
                best = d
    clusters.home[root] = best
    clusters.booked[best] += clusters.load[root, best]
