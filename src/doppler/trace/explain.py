"""Why an execution took as long as it did, and what sets two placements apart.

A *task* is an op or a transfer: task v < V is op v, task V + t is transfer t. A *track* runs one
task at a time: a stream of a device, a channel, an engine, a network interface one way. Shape
suffixes: V ops, T transfers, K = V + T tasks, D devices.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from doppler.errors import InputError
from doppler.trace.events import Trace
from doppler.trace.usage import (
    InterfaceUse,
    LinkUse,
    bytes_text,
    interfaces_used,
    links_used,
    time_text,
)

FloatArray = NDArray[np.float64]
WaitedFor = Literal["data", "device", "link", "interface", "start"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One task of the critical chain.

    id: of the op, or of the transfer in the trace. name: of the op, or of the transfer's producer.
    where: ``device d`` or ``s -> d``. waited_for: what came last before it could start: its
    ``data``, its ``device``, ``link`` or network ``interface`` that another task occupied, or
    nothing (``start``).
    queued_s: how long its data had been there when the busy resource became free, in seconds.
    """

    kind: Literal["op", "transfer"]
    id: int
    name: str
    where: str
    start_s: float
    finish_s: float
    waited_for: WaitedFor
    queued_s: float

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.finish_s - self.start_s


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """What bounds a makespan.

    chain: the tasks that led to the last finish, first to last; each begins when the one before it
    ends. compute_s + transfer_s + idle_s is the makespan: ops and transfers of the chain, and what
    lies between them, which is barriers (if the system has them), or hand-over on a real system.
    device_queue_s, link_queue_s and interface_queue_s are the parts of it in which the next task of
    the chain waited for a busy resource instead of its data.
    device_utilisation: [D] busy share of the makespan, the mean over streams. links, interfaces:
    those used, the busiest first.
    """

    makespan_s: float
    system_kind: Literal["simulated", "measured"]
    barriers: bool
    chain: tuple[Step, ...]
    compute_s: float
    transfer_s: float
    idle_s: float
    device_queue_s: float
    link_queue_s: float
    device_names: tuple[str, ...]
    device_utilisation: FloatArray
    links: tuple[LinkUse, ...]
    interface_queue_s: float
    interfaces: tuple[InterfaceUse, ...]

    def lines(self) -> list[str]:
        """The explanation as a few lines of text."""
        ops = [step for step in self.chain if step.kind == "op"]
        between = "waiting at barriers" if self.barriers else "hand-over"
        found = [
            f"makespan {time_text(self.makespan_s)} ({self.system_kind}), set by a chain of "
            f"{len(ops)} ops and {len(self.chain) - len(ops)} transfers",
            f"on the chain: compute {self._share(self.compute_s)}, "
            f"transfers {self._share(self.transfer_s)}"
            + (f", {between} {self._share(self.idle_s)}" if self.idle_s else ""),
            f"queueing on the chain: {self._queueing('device', self.device_queue_s)}; "
            f"{self._queueing('link', self.link_queue_s)}"
            + (
                f"; {self._queueing('interface', self.interface_queue_s)}"
                if self.interfaces
                else ""
            ),
            "devices busy: "
            + ", ".join(
                f"{name} {share:.0%}"
                for name, share in zip(self.device_names, self.device_utilisation, strict=True)
            ),
        ]
        found += self._busiest()
        longest = sorted(ops, key=lambda step: -step.seconds)[:3]
        found.append(
            "longest ops of the chain: "
            + ", ".join(f"{step.name} {time_text(step.seconds)} ({step.where})" for step in longest)
        )
        return found

    def _busiest(self) -> list[str]:
        """The links and the network interfaces that are busiest, three of each."""
        links = [
            f"{use.src} -> {use.dst} {use.utilisation:.0%} "
            f"({use.num_transfers} transfers, {bytes_text(use.bytes)})"
            for use in self.links[:3]
        ]
        interfaces = [
            f"host {use.host} {use.way} {use.utilisation:.0%} "
            f"({use.num_transfers} transfers, {bytes_text(use.bytes)})"
            for use in self.interfaces[:3]
        ]
        named = {"links": links, "network interfaces": interfaces}
        return [f"busiest {what}: {', '.join(uses)}" for what, uses in named.items() if uses]

    def _share(self, seconds: float) -> str:
        return f"{time_text(seconds)} ({seconds / (self.makespan_s or 1.0):.0%})"

    def _queueing(self, resource: str, seconds: float) -> str:
        num = sum(step.waited_for == resource for step in self.chain)
        behind = f", behind {self._share(seconds)} of others" if num else ""
        return f"{num} waited for a busy {resource}{behind}"


def explain(trace: Trace) -> Explanation:
    """What bounds the makespan: the critical chain and how busy devices and links were.

    The chain is walked backward from the op that finishes last. Where data and resource came at
    the same instant, the data is taken.
    """
    chain = _critical_chain(trace)
    before = list(pairwise(chain))
    compute_s = sum(step.seconds for step in chain if step.kind == "op")
    transfer_s = sum(step.seconds for step in chain if step.kind == "transfer")
    gaps = [max(0.0, step.start_s - earlier.finish_s) for earlier, step in before]
    return Explanation(
        makespan_s=trace.makespan_s,
        system_kind=trace.system_kind,
        barriers=trace.rules.barriers,
        chain=tuple(chain),
        compute_s=compute_s,
        transfer_s=transfer_s,
        idle_s=chain[0].start_s + sum(gaps),
        device_queue_s=sum(e.seconds for e, step in before if step.waited_for == "device"),
        link_queue_s=sum(e.seconds for e, step in before if step.waited_for == "link"),
        interface_queue_s=sum(e.seconds for e, step in before if step.waited_for == "interface"),
        device_names=tuple(device.name for device in trace.problem.cluster.devices),
        device_utilisation=_device_utilisation(trace),
        links=links_used(trace),
        interfaces=interfaces_used(trace),
    )


def compare(trace_a: Trace, trace_b: Trace) -> list[str]:
    """What sets the placement of ``trace_b`` apart from that of ``trace_a``, as lines of text.

    Raises:
        InputError: the traces are of different problems.
    """
    problem = trace_a.problem
    if problem.hash != trace_b.problem.hash:
        raise InputError(
            f"traces of two problems cannot be compared: {problem.hash} and {trace_b.problem.hash}"
        )
    a_V, b_V = trace_a.placement.device, trace_b.placement.device
    moved = np.flatnonzero(a_V != b_V)
    change = trace_b.makespan_s / trace_a.makespan_s - 1.0 if trace_a.makespan_s else 0.0
    found = [
        f"makespan {time_text(trace_a.makespan_s)} -> {time_text(trace_b.makespan_s)} "
        f"({change:+.1%})",
        f"ops on another device: {len(moved)} of {problem.num_ops}",
        f"bytes moved: {bytes_text(_moved_bytes(trace_a))} -> {bytes_text(_moved_bytes(trace_b))} "
        f"in {trace_a.num_transfers} -> {trace_b.num_transfers} transfers",
        "devices busy: "
        + ", ".join(
            f"{device.name} {a:.0%} -> {b:.0%}"
            for device, a, b in zip(
                problem.cluster.devices,
                _device_utilisation(trace_a),
                _device_utilisation(trace_b),
                strict=True,
            )
        ),
    ]
    if len(moved):
        names, seconds_V = problem.graph.ops.names, problem.mean_op_seconds
        largest = moved[np.argsort(-seconds_V[moved], kind="stable")][:5]
        texts = [
            f"{names[v]} ({time_text(float(seconds_V[v]))}) {a_V[v]} -> {b_V[v]}" for v in largest
        ]
        found.append("largest ops among them: " + ", ".join(texts))
    return found


def _moved_bytes(trace: Trace) -> float:
    return float(trace.problem.graph.regions.bytes[trace.transfer_region].sum())


def _device_utilisation(trace: Trace) -> FloatArray:
    busy_V = trace.op_finish_s - trace.op_start_s
    busy_D = np.bincount(trace.placement.device, busy_V, trace.problem.num_devices)
    return busy_D / ((trace.makespan_s or 1.0) * trace.rules.streams)


def _critical_chain(trace: Trace) -> list[Step]:
    causes = _Causes(trace)
    steps, seen = [], set()
    task = int(trace.op_finish_s.argmax())
    # Measured times may disagree by a hair: a task that comes up again ends the walk.
    while task >= 0 and task not in seen:
        seen.add(task)
        waited_for, before = causes.of(task)
        steps.append(causes.step(task, waited_for))
        task = before
    return steps[::-1]


class _Causes:
    """What each task waited for last, looked up task by task."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.num_ops = trace, trace.problem.num_ops
        self.start_K = np.concatenate([trace.op_start_s, trace.transfer_start_s])
        self.finish_K = np.concatenate([trace.op_finish_s, trace.transfer_finish_s])
        arrivals = zip(trace.transfer_region.tolist(), trace.transfer_dst.tolist(), strict=True)
        self.carrier = {pair: self.num_ops + t for t, pair in enumerate(arrivals)}
        self.tracks: dict[tuple, tuple[list[float], list[int]]] = {}
        for k in np.lexsort((self.finish_K, self.start_K)).tolist():
            for key in self._track_keys(k):
                starts, tasks = self.tracks.setdefault(key, ([], []))
                starts.append(float(self.start_K[k]))
                tasks.append(k)
        self.earlier_V = np.full(self.num_ops, -1)
        if trace.rules.queue == "strict":
            order = np.lexsort((trace.placement.priority, trace.placement.device))
            same = np.diff(trace.placement.device[order]) == 0
            self.earlier_V[order[1:][same]] = order[:-1][same]

    def of(self, task: int) -> tuple[WaitedFor, int]:
        """What the task waited for and the task that ended the wait, -1 for none."""
        # In strict order an op also waits for the one before it to start, and so for its causes.
        holder = task
        while holder < self.num_ops and (earlier := int(self.earlier_V[holder])) >= 0:
            occupant, _ = self._occupant(holder)
            came = max(self._finish(self._delivered(holder)), self._finish(occupant))
            if self.start_K[earlier] <= max(0.0, came):
                break
            holder = earlier
        waited_for, before = self._own(holder)
        return ("device" if holder != task and before >= 0 else waited_for), before

    def step(self, task: int, waited_for: WaitedFor) -> Step:
        """The task as a step of the chain."""
        trace, is_op = self.trace, task < self.num_ops
        t = task - self.num_ops
        op = task if is_op else int(trace.problem.graph.regions.src[trace.transfer_region[t]])
        start_s = float(self.start_K[task])
        ready_s = max(0.0, self._finish(self._delivered(task)))
        return Step(
            kind="op" if is_op else "transfer",
            id=task if is_op else t,
            name=trace.problem.graph.ops.names[op],
            where=f"device {trace.placement.device[task]}"
            if is_op
            else f"{trace.transfer_src[t]} -> {trace.transfer_dst[t]}",
            start_s=start_s,
            finish_s=float(self.finish_K[task]),
            waited_for=waited_for,
            queued_s=0.0 if waited_for in ("data", "start") else start_s - ready_s,
        )

    def _own(self, task: int) -> tuple[WaitedFor, int]:
        data, (occupant, what) = self._delivered(task), self._occupant(task)
        if self._finish(occupant) > self._finish(data):
            return what, occupant
        return ("data", data) if data >= 0 else ("start", -1)

    def _finish(self, task: int) -> float:
        return float(self.finish_K[task]) if task >= 0 else -np.inf

    def _delivered(self, task: int) -> int:
        """The task that brought the last of its data."""
        arrays, device_V = self.trace.problem.arrays, self.trace.placement.device
        if task >= self.num_ops:
            return int(arrays.region_src[self.trace.transfer_region[task - self.num_ops]])
        best, here = -1, int(device_V[task])
        for r in arrays.reads[arrays.read_ptr[task] : arrays.read_ptr[task + 1]].tolist():
            src = int(arrays.region_src[r])
            by = src if device_V[src] == here else self.carrier[r, here]
            if self._finish(by) > self._finish(best):
                best = by
        return best

    def _occupant(self, task: int) -> tuple[int, WaitedFor]:
        """The last task to start before it on a track that it needs, and what that is of."""
        best, what = -1, "start"
        for of, *key in self._track_keys(task):
            starts, tasks = self.tracks[of, *key]
            i = bisect_left(starts, self.start_K[task])
            if i and self._finish(tasks[i - 1]) > self._finish(best):
                best, what = tasks[i - 1], of
        return best, what

    def _track_keys(self, task: int) -> list[tuple[Any, ...]]:
        """What each track is of, and its name."""
        trace, t = self.trace, task - self.num_ops
        if task < self.num_ops:
            return [("device", trace.placement.device[task], trace.op_stream[task])]
        src, dst = trace.transfer_src[t], trace.transfer_dst[t]
        if trace.rules.contention == "none":
            return []
        keys = [("link", "sender", src), ("link", "receiver", dst)]
        if trace.rules.contention == "fifo":
            keys = [("link", src, dst)]
        if (hosts := trace.problem.cluster.hosts) and hosts[src] != hosts[dst]:
            keys.append(("interface", "out", hosts[src], trace.transfer_outlet[t]))
            keys.append(("interface", "in", hosts[dst], trace.transfer_inlet[t]))
        return keys
