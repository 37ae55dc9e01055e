"""Problem: a graph priced on a cluster, with all numbers that the rest of the package needs.

Shape suffixes: V ops, E edges, R regions, I inputs, D devices.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from doppler.cluster import Cluster
from doppler.cluster.sharing import shares_alike
from doppler.graph import DataflowGraph
from doppler.graph.alternatives import fastest
from doppler.graph.formats import write_atomically
from doppler.graph.levels import longest_paths, topological_order
from doppler.problem.arrays import (
    ProblemArrays,
    link_seconds,
    make_arrays,
    same_when_swapped,
)
from doppler.problem.costs import MAX_SECONDS, CostTable
from doppler.problem.pricing import given_prices, measured_seconds, modelled_prices
from doppler.problem.restrictions import groups_of, restrict
from doppler.problem.sharing import SharingArrays, make_sharing
from doppler.support.errors import InputError, unrounded
from doppler.support.files import read_json
from doppler.support.files.values import read_integers, read_object, read_text

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Further entries that a placement file may have for human readers.
_EXTRA = ("makespan_s", "system_kind", "evaluations", "seconds")


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A graph on a cluster: seconds per op and device, transfer times, memory. Made by `build`.

    Costs that come with the graph replace the speeds or latencies of the cluster, and its memory
    sizes unless the graph counts memory.

    Attributes:
        graph: what to run.
        cluster: where.
        arrays: seconds, bytes and limits for compiled code.
        costs: measured on the cluster; missing ones are modelled. None: all are modelled.
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
        """Whether the times of ops come with the graph instead of from the cluster."""
        given = self.graph.given_costs
        return given is not None and given.op_seconds is not None

    @property
    def has_groups(self) -> bool:
        """Whether some ops must be on the same device."""
        return len(self.arrays.members) > 0

    def allows(self, device_BV: IntArray) -> NDArray[np.bool_]:
        """Return which placements [B] respect groups and the devices that can run each op."""
        p = self.arrays
        able_BV = np.isfinite(p.op_seconds[np.arange(self.num_ops), device_BV])
        if self.has_groups:
            able_BV &= device_BV == device_BV[:, p.group]
        return np.asarray(able_BV.all(axis=1))

    @cached_property
    def group_seconds(self) -> FloatArray:
        """Seconds [V, D] of all ops in each op's group, one after another on a device."""
        p = self.arrays
        if not self.has_groups:
            return p.op_seconds
        total_VD = np.zeros_like(p.op_seconds)
        np.add.at(total_VD, p.group, p.op_seconds)
        return total_VD[p.group]

    def is_measured(self) -> NDArray[np.bool_]:
        """Whether the seconds of ops [V, D] are measured, for devices that can run the op."""
        able_VD = np.isfinite(self.arrays.op_seconds)
        if self.costs is None or self.has_given_costs:
            return np.zeros_like(able_VD)
        return able_VD & np.isfinite(measured_seconds(self.graph, self.costs))

    @cached_property
    def hash(self) -> str:
        """Hex digest of all numbers of the problem: equal for equal problems."""
        digest = hashlib.sha256()
        p = self.arrays
        by_kind, has_hosts = len(p.kind_seconds) > 0, len(p.host) > 0
        named = (*(by_kind,) * 2, *(self.has_groups,) * 3, *(has_hosts,) * 2)
        # Optional fields enter the hash only when they are set, so that older hashes stay valid.
        for array, counts in zip(p, (True,) * (len(p) - len(named)) + named, strict=True):
            if not counts:
                continue
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        for array in self.sharing or ():
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def same_when_swapped(self, a: int, b: int) -> bool:
        """Whether two devices can swap their names without changing the problem."""
        if not same_when_swapped(self.arrays, a, b):
            return False
        return self.sharing is None or (
            shares_alike(self.cluster.shared, a, b)
            and np.array_equal(self.sharing.op_bytes[:, a], self.sharing.op_bytes[:, b])
            and np.array_equal(self.sharing.op_processors[:, a], self.sharing.op_processors[:, b])
        )

    @cached_property
    def sharing(self) -> SharingArrays | None:
        """How ops and transfers use shared resources; None if the machine has none."""
        return make_sharing(self.graph, self.cluster, self.arrays, self.costs)

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
        if len(self.arrays.kind_seconds):
            return link_seconds(self.arrays, slice(None))[:, between].mean(axis=1)
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

    Args:
        graph: what to run.
        cluster: where.
        costs: measured on the cluster's devices. They replace modelled seconds, but not seconds
            that come with the graph.

    Raises:
        InputError: an op or a group that no device can run, an op whose data fits on no device,
            costs of other devices, or more than `MAX_SECONDS` of ops and transfers.
    """
    if costs is not None and costs.devices != tuple(device.name for device in cluster.devices):
        raise InputError(
            f"cluster {cluster.name!r}: costs measured on {', '.join(costs.devices)} are not its"
        )
    if graph.given_costs is not None:
        prices = given_prices(graph, graph.given_costs, cluster, costs)
    else:
        prices = modelled_prices(graph, cluster, costs)
    if (
        graph.ops.alternatives
    ):  # who chooses none runs the fastest of each device (doppler.extensions.programs.choices)
        where = f"graph {graph.name!r}"
        fast_VD = fastest(graph.ops.alternatives, prices.op_seconds, where)
        prices = prices._replace(op_seconds=fast_VD)
    groups = groups_of(graph)
    restrict(graph, cluster, groups, prices.op_seconds)
    arrays = make_arrays(graph, prices, groups)
    _check_seconds(graph, arrays)
    _check_memory(graph, arrays)
    return Problem(graph=graph, cluster=cluster, arrays=arrays, costs=costs)


def _check_seconds(graph: DataflowGraph, arrays: ProblemArrays) -> None:
    """Refuse problems with schedules too long to represent, with every task at its slowest."""
    seconds_V = np.where(np.isfinite(arrays.op_seconds), arrays.op_seconds, 0.0).max(axis=1)
    slowest = arrays.latency_s.max() + arrays.size * arrays.seconds_per_size.max()
    if len(arrays.kind_seconds):
        slowest = arrays.kind_seconds.max(axis=(1, 2))
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
    """Refuse ops whose inputs, reads and output do not fit on one device at the same time."""
    need_V = arrays.sink_bytes.copy()
    np.add.at(need_V, arrays.region_src, arrays.region_bytes)
    np.add.at(need_V, graph.edges.dst, graph.edges.bytes)
    # An op that is named twice among the consumers of an input holds it once.
    input_N = np.repeat(np.arange(len(arrays.input_bytes)), np.diff(arrays.input_ptr))
    reader_M, input_M = np.unique(np.stack([arrays.input_consumers, input_N]), axis=1)
    np.add.at(need_V, reader_M, arrays.input_bytes[input_M])
    room_V = np.where(np.isfinite(arrays.op_seconds), arrays.memory_bytes, 0.0).max(axis=1)
    bad = np.flatnonzero(need_V > room_V)
    if len(bad):
        v = bad[0]
        raise InputError(
            f"graph {graph.name!r}: op {v} ({graph.ops.names[v]!r}) needs {need_V[v]:.3g} bytes at "
            f"once, the largest device that runs it has {room_V[v]:.3g}; the least memory that "
            f"would do for all ops is {unrounded(need_V.max())}"
        )
    if len(arrays.members) == 0:
        return
    # The inputs of a group stay on its device together.
    root_M, input_M = np.unique(np.stack([arrays.group[arrays.input_consumers], input_N]), axis=1)
    held_V = np.bincount(root_M, arrays.input_bytes[input_M], graph.num_ops)
    bad = np.flatnonzero(held_V > room_V)
    if len(bad):
        raise InputError(
            f"graph {graph.name!r}: the inputs of group {graph.ops.group[bad[0]]} take "
            f"{held_V[bad[0]]:.3g} bytes, the largest device that runs it has {room_V[bad[0]]:.3g}"
        )


def _integers(values: ArrayLike, name: str) -> IntArray:
    """Copy as integers; refuse fractions."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.array(None)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"placement: {name} are not all integers")
    return np.array(array, dtype=np.int64)


def topological_priority(problem: Problem) -> IntArray:
    """Return the default order: priorities [V] in topological order, sources first, ties by id.

    Args:
        problem: to place.
    """
    edges = problem.graph.edges
    priority_V = np.empty(problem.num_ops, dtype=np.int64)
    order_V = topological_order(problem.num_ops, edges.src, edges.dst)
    priority_V[order_V] = np.arange(problem.num_ops)
    return priority_V


def _misplaced(problem: Problem, device_V: IntArray) -> InputError:
    """An error that names an op on a device that it may not use."""
    graph, p = problem.graph, problem.arrays
    bad = np.flatnonzero(~np.isfinite(p.op_seconds[np.arange(problem.num_ops), device_V]))
    if len(bad):
        v = int(bad[0])
        where = f"placement: op {v} ({graph.ops.names[v]!r}) is on device {device_V[v]}"
        if graph.ops.pinned[v] >= 0:
            return InputError(f"{where}, but pinned to {graph.ops.pinned[v]}")
        if graph.ops.group[v] >= 0:
            return InputError(f"{where}, which cannot run it or its group")
        return InputError(f"{where}, which cannot run its kind")
    v = int(np.flatnonzero(device_V != device_V[p.group])[0])
    return InputError(
        f"placement: ops {p.group[v]} and {v} of group {graph.ops.group[v]} are on devices "
        f"{device_V[p.group[v]]} and {device_V[v]}"
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """A device and a priority for every op of one problem.

    Attributes:
        device: [V] device of each op.
        priority: [V] rank of each op in the order of decisions, 0 first.
        problem_hash: hash of the problem that it was made for.
    """

    device: IntArray
    priority: IntArray
    problem_hash: str

    @classmethod
    def make(
        cls, problem: Problem, device: ArrayLike, priority: ArrayLike | None = None
    ) -> "Placement":
        """Check a placement against its problem.

        Args:
            problem: that is placed.
            device: [V] device of each op.
            priority: [V] rank of each op, 0 first; topological order by default.

        Raises:
            InputError: a wrong number of ops, a device that does not exist, priorities that are not
                a ranking, an op on a device that cannot run it, or numbers that are not integers.
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
        if not problem.allows(device[None])[0]:
            raise _misplaced(problem, device)
        return cls(device=device, priority=priority, problem_hash=problem.hash)

    def save(self, path: str | Path, extra: Mapping[str, object] | None = None) -> None:
        """Write JSON atomically.

        Args:
            path: of the file.
            extra: further entries for people who read the file.
        """
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
            InputError: the file cannot be read, or belongs to another problem.
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
