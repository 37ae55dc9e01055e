"""Problem: the numbers that everything else computes on, made from a graph and a cluster.

Shape suffixes: V ops, E edges, R regions, I inputs, D devices.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from doppler.cluster import Cluster
from doppler.costs import MAX_SECONDS, CostTable
from doppler.errors import InputError
from doppler.files import read_json
from doppler.files.values import read_integers, read_object, read_text
from doppler.graph import DataflowGraph
from doppler.graph.formats import write_atomically
from doppler.graph.levels import longest_paths, topological_order
from doppler.pricing import Prices, given_prices, measured_seconds, modelled_prices

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# What writers of placements add for their own readers.
_EXTRA = ("makespan_s", "system_kind", "evaluations", "seconds")


class ProblemArrays(NamedTuple):
    """A problem as plain arrays, the form that compiled code takes.

    A region's transfer from device s to device d takes
    ``latency_s[s, d] + size[r] * seconds_per_size[s, d]`` seconds; with given costs the size is
    the given number of seconds. The other arrays are those of graph.Regions, and the same edges
    seen from the consumer: op v reads the regions ``reads[read_ptr[v]:read_ptr[v + 1]]``.
    """

    op_seconds: FloatArray  # [V, D], inf where the device cannot run the op
    size: FloatArray  # [R]
    latency_s: FloatArray  # [D, D]
    seconds_per_size: FloatArray  # [D, D]
    region_src: IntArray  # [R]
    region_ptr: IntArray  # [V + 1]
    consumer_ptr: IntArray  # [R + 1]
    consumers: IntArray  # [E]
    read_ptr: IntArray  # [V + 1]
    reads: IntArray  # [E]
    region_bytes: FloatArray  # [R]
    sink_bytes: FloatArray  # [V] output that no op reads, kept to the end
    input_ptr: IntArray  # [I + 1]
    input_consumers: IntArray
    input_bytes: FloatArray  # [I]
    memory_bytes: FloatArray  # [D]


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A graph on a cluster: seconds per op and device, transfer times, memory.

    Make it with `build`. Given costs replace the cluster's speeds, latencies and memory sizes;
    what is left of the cluster is its number of devices and the op kinds they cannot run.

    costs: measured on the cluster, where there are any; what it lacks is modelled.
    """

    graph: DataflowGraph
    cluster: Cluster
    arrays: ProblemArrays
    costs: CostTable | None = None

    @property
    def num_ops(self) -> int:
        """Number of ops, V."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return self.cluster.num_devices

    @property
    def has_given_costs(self) -> bool:
        """Whether the times come with the graph instead of from the cluster."""
        return self.graph.given_costs is not None

    def is_measured(self) -> NDArray[np.bool_]:
        """Which seconds of ops [V, D] are measured, on the devices that can run the op."""
        able_VD = np.isfinite(self.arrays.op_seconds)
        if self.costs is None or self.has_given_costs:
            return np.zeros_like(able_VD)
        return able_VD & np.isfinite(measured_seconds(self.graph, self.costs))

    @cached_property
    def hash(self) -> str:
        """Hex digest of all numbers of the problem: equal for equal problems."""
        digest = hashlib.sha256()
        for array in self.arrays:
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def mean_op_seconds(self) -> FloatArray:
        """Seconds of each op [V], the mean over the devices that can run it."""
        seconds_VD = self.arrays.op_seconds
        able_VD = np.isfinite(seconds_VD)
        return np.where(able_VD, seconds_VD, 0.0).sum(1) / able_VD.sum(1)

    @cached_property
    def mean_transfer_seconds(self) -> FloatArray:
        """Seconds to move each region [R], the mean over ordered pairs of distinct devices."""
        num = self.num_devices
        if num == 1:
            return np.zeros(len(self.arrays.size))
        between = ~np.eye(num, dtype=bool)
        return (
            self.arrays.latency_s[between].mean()
            + self.arrays.size * self.arrays.seconds_per_size[between].mean()
        )

    @cached_property
    def scale_s(self) -> float:
        """The problem's own time scale: max(total work / devices, longest op path), in seconds."""
        graph, work_V = self.graph, self.mean_op_seconds
        path_V, _ = longest_paths(
            graph.num_ops, graph.edges.src, graph.edges.dst, work_V, np.zeros(graph.num_edges)
        )
        return max(work_V.sum() / self.num_devices, path_V.max()) or 1.0


def build(graph: DataflowGraph, cluster: Cluster, costs: CostTable | None = None) -> Problem:
    """Price a graph on a cluster.

    costs: measured on the cluster's devices; they replace modelled seconds, not given ones.

    Raises:
        InputError: an op whose kind no device runs, an op whose data fits on no device, costs of
            other devices, or ops and transfers of more than `MAX_SECONDS` together.
    """
    if costs is not None and costs.devices != tuple(device.name for device in cluster.devices):
        raise InputError(
            f"cluster {cluster.name!r}: costs measured on {', '.join(costs.devices)} are not its"
        )
    if graph.given_costs is not None:
        prices = given_prices(graph, graph.given_costs, cluster.num_devices)
    else:
        prices = modelled_prices(graph, cluster, costs)
    _forbid_unsupported(graph, cluster, prices.op_seconds)
    arrays = _arrays(graph, prices)
    _check_seconds(graph, arrays)
    _check_memory(graph, arrays)
    return Problem(graph=graph, cluster=cluster, arrays=arrays, costs=costs)


def _forbid_unsupported(graph: DataflowGraph, cluster: Cluster, op_seconds: FloatArray) -> None:
    """Set the seconds [V, D] of ops on devices that do not run their kind to inf."""
    ops, kinds = graph.ops, np.array(graph.ops.kinds)
    for d, device in enumerate(cluster.devices):
        op_seconds[np.isin(kinds, list(device.unsupported_kinds)), d] = np.inf
    homeless = np.flatnonzero(~np.isfinite(op_seconds).any(axis=1))
    if len(homeless):
        v = homeless[0]
        raise InputError(
            f"cluster {cluster.name!r}: no device runs op {v} ({ops.names[v]!r}) "
            f"of kind {ops.kinds[v]!r}"
        )


def _arrays(graph: DataflowGraph, prices: Prices) -> ProblemArrays:
    """Writable and contiguous copies of all that compiled code reads."""
    edges, regions, inputs = graph.edges, graph.regions, graph.inputs
    read_edge_E = np.lexsort((regions.of_edge, edges.dst))
    return ProblemArrays(
        op_seconds=np.ascontiguousarray(prices.op_seconds),
        size=prices.size,
        latency_s=prices.latency_s,
        seconds_per_size=np.ascontiguousarray(prices.seconds_per_size),
        region_src=regions.src.copy(),
        region_ptr=regions.op_ptr.copy(),
        consumer_ptr=regions.consumer_ptr.copy(),
        consumers=regions.consumers.copy(),
        read_ptr=np.searchsorted(edges.dst[read_edge_E], np.arange(graph.num_ops + 1)),
        reads=regions.of_edge[read_edge_E],
        region_bytes=regions.bytes.copy(),
        sink_bytes=np.where(np.diff(regions.op_ptr) == 0, graph.ops.output_bytes, 0.0),
        input_ptr=np.cumsum([0, *(len(ops) for ops in inputs.consumers)]).astype(np.int64),
        input_consumers=np.array(
            [v for consumers in inputs.consumers for v in consumers], dtype=np.int64
        ),
        input_bytes=inputs.bytes.copy(),
        memory_bytes=prices.memory_bytes,
    )


def _check_seconds(graph: DataflowGraph, arrays: ProblemArrays) -> None:
    """Refuse what no schedule could be written down of, every op and transfer at its slowest."""
    seconds_V = np.where(np.isfinite(arrays.op_seconds), arrays.op_seconds, 0.0).max(axis=1)
    slowest = arrays.latency_s.max() + arrays.size * arrays.seconds_per_size.max()
    seconds_R = slowest * np.diff(arrays.consumer_ptr)
    if seconds_V.sum() + seconds_R.sum() <= MAX_SECONDS:
        return
    v = int(seconds_V.argmax())
    what, longest = f"op {v} ({graph.ops.names[v]!r})", seconds_V[v]
    if len(seconds_R) and seconds_R.max() > longest:
        v, longest = int(arrays.region_src[seconds_R.argmax()]), seconds_R.max()
        what = f"moving the output of op {v} ({graph.ops.names[v]!r})"
    raise InputError(
        f"graph {graph.name!r}: all ops and transfers must take at most {MAX_SECONDS:g} s "
        f"together; {what} takes {longest:.3g} s"
    )


def _check_memory(graph: DataflowGraph, arrays: ProblemArrays) -> None:
    """An op needs its inputs, what it reads and what it writes on one device at one time."""
    need_V = arrays.sink_bytes.copy()
    np.add.at(need_V, arrays.region_src, arrays.region_bytes)
    np.add.at(need_V, graph.edges.dst, graph.edges.bytes)
    of_consumer = np.repeat(arrays.input_bytes, np.diff(arrays.input_ptr))
    np.add.at(need_V, arrays.input_consumers, of_consumer)
    room_V = np.where(np.isfinite(arrays.op_seconds), arrays.memory_bytes, 0.0).max(axis=1)
    bad = np.flatnonzero(need_V > room_V)
    if len(bad):
        v = bad[0]
        raise InputError(
            f"graph {graph.name!r}: op {v} ({graph.ops.names[v]!r}) needs {need_V[v]:.3g} bytes at "
            f"once, the largest device that runs it has {room_V[v]:.3g}"
        )


def _integers(values: ArrayLike, name: str) -> IntArray:
    """A copy; numbers with a fraction are not cut off."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.array(None)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"placement: {name} are not all integers")
    return np.array(array, dtype=np.int64)


def topological_priority(problem: Problem) -> IntArray:
    """Priorities [V] in topological order, sources first, ties by id: the default order."""
    edges = problem.graph.edges
    priority_V = np.empty(problem.num_ops, dtype=np.int64)
    order_V = topological_order(problem.num_ops, edges.src, edges.dst)
    priority_V[order_V] = np.arange(problem.num_ops)
    return priority_V


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """A device and a priority for every op of one problem.

    device: [V] device per op. priority: [V] rank in the order of decisions, 0 first.
    problem_hash: of the problem it was made for.
    """

    device: IntArray
    priority: IntArray
    problem_hash: str

    @classmethod
    def make(
        cls, problem: Problem, device: ArrayLike, priority: ArrayLike | None = None
    ) -> "Placement":
        """Check against the problem; without priorities, ops rank in topological order.

        Raises:
            InputError: wrong number of ops, a device that does not exist, priorities that are no
                ranking, an op on a device that cannot run it, numbers that are no integers.
        """
        device = _integers(device, "devices")
        num = problem.num_ops
        if priority is None:
            priority = topological_priority(problem)
        priority = _integers(priority, "priorities")
        if device.shape != (num,) or priority.shape != (num,):
            raise InputError(
                f"placement: {device.size} devices and {priority.size} priorities for {num} ops"
            )
        bad = np.flatnonzero((device < 0) | (device >= problem.num_devices))
        if len(bad):
            raise InputError(
                f"placement: op {bad[0]} is on device {device[bad[0]]}, "
                f"but the devices are 0 to {problem.num_devices - 1}"
            )
        if not np.array_equal(np.sort(priority), np.arange(num)):
            raise InputError(f"placement: priorities are not a ranking 0 to {num - 1}")
        bad = np.flatnonzero(~np.isfinite(problem.arrays.op_seconds[np.arange(num), device]))
        if len(bad):
            name = problem.graph.ops.names[bad[0]]
            raise InputError(
                f"placement: op {bad[0]} ({name!r}) is on device {device[bad[0]]}, "
                "which cannot run its kind"
            )
        return cls(device=device, priority=priority, problem_hash=problem.hash)

    def save(self, path: str | Path, extra: Mapping[str, object] | None = None) -> None:
        """Write JSON, atomically; ``extra`` are further entries for the reader."""
        write_atomically(
            path,
            json.dumps(
                {
                    "problem_hash": self.problem_hash,
                    **(extra or {}),
                    "device": self.device.tolist(),
                    "priority": self.priority.tolist(),
                }
            )
            + "\n",
        )

    @classmethod
    def load(cls, path: str | Path, problem: Problem) -> "Placement":
        """Read what `save` wrote.

        Raises:
            InputError: unreadable file, or a placement for another problem.
        """
        data = read_json(path)
        try:
            row = read_object(data, "", ("problem_hash", "device", "priority"), _EXTRA)
            device, priority = (read_integers(row[key], key) for key in ("device", "priority"))
            made_for = read_text(row["problem_hash"], "problem_hash")
            if made_for != problem.hash:
                raise InputError(f"made for problem {made_for[:40]!r}, not {problem.hash!r}")
            return cls.make(problem, np.array(device, np.int64), np.array(priority, np.int64))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
