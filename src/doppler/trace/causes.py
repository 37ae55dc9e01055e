"""What each task of an execution waited for last.

A *task* is an op or a transfer: task v < V is op v, task V + t is transfer t. If memory was
planned, task V + T + m is the m-th task that the plan added. A *track* runs one task at a time: a
stream of a device, a channel, an engine, or one direction of a network interface.

Shape suffixes: V ops, T transfers, M of memory, K = V + T + M tasks.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from doppler.trace.events import Trace

WaitedFor = Literal["data", "memory", "device", "link", "interface", "start"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One task of the critical chain.

    Attributes:
        kind: of the task.
        id: of the op, of the transfer in the trace, or of the memory task.
        name: of the op, or of the transfer's producer.
        where: ``device d`` or ``s -> d``.
        start_s: when it started.
        finish_s: when it ended.
        waited_for: what it waited for last before it could start: its ``data``, room in ``memory``,
            a ``device``, ``link`` or network ``interface`` that another task occupied, or nothing
            (``start``).
        queued_s: how long its data had been there when the busy resource became free, in seconds.
    """

    kind: Literal["op", "transfer", "evict", "load", "recompute"]
    id: int
    name: str
    where: str
    start_s: float
    finish_s: float
    waited_for: WaitedFor
    queued_s: float

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.finish_s - self.start_s


class Causes:
    """Finds what each task waited for last, one task at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.num_ops = trace, trace.problem.num_ops
        self.num_known = self.num_ops + trace.num_transfers
        starts, ends = [trace.op_start_s], [trace.op_finish_s]
        for more in (trace.transfer_start_s, *([trace.memory.start_s] if trace.memory else [])):
            starts.append(more)
        for more in (trace.transfer_finish_s, *([trace.memory.finish_s] if trace.memory else [])):
            ends.append(more)
        self.start_K, self.finish_K = np.concatenate(starts), np.concatenate(ends)
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
        """Return what the task waited for, and the task that ended the wait (-1 for none)."""
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
        """Return the task as a step of the chain."""
        trace, is_op = self.trace, task < self.num_ops
        if task >= self.num_known:
            return self._step_of_memory(task, waited_for)
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

    def _step_of_memory(self, task: int, waited_for: WaitedFor) -> Step:
        """A task of the memory plan as a step of the chain."""
        more, i = self.trace.memory, task - self.num_known
        assert more is not None
        device, start_s = more.device[i], float(self.start_K[task])
        ways = {"evict": f"{device} -> host", "load": f"host -> {device}"}
        ready_s = max(0.0, self._finish(int(more.last[task])))
        return Step(
            kind=more.kinds[i],
            id=i,
            name=more.names[i],
            where=ways.get(more.kinds[i], f"device {device}"),
            start_s=start_s,
            finish_s=float(self.finish_K[task]),
            waited_for=waited_for,
            queued_s=0.0 if waited_for in ("data", "memory", "start") else start_s - ready_s,
        )

    def _own(self, task: int) -> tuple[WaitedFor, int]:
        data, (occupant, what) = self._delivered(task), self._occupant(task)
        if self._finish(occupant) > self._finish(data):
            return what, occupant
        if data < 0:
            return "start", -1
        is_room = task >= self.num_known or data != self._reads_last(task)
        return ("memory" if self.trace.memory is not None and is_room else "data"), data

    def _finish(self, task: int) -> float:
        return float(self.finish_K[task]) if task >= 0 else -np.inf

    def _delivered(self, task: int) -> int:
        """The task that brought the last of its data, or made room for its output."""
        if self.trace.memory is not None:
            return int(self.trace.memory.last[task])
        return self._reads_last(task)

    def _reads_last(self, task: int) -> int:
        """The task that made or moved the last of its data."""
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
        """The last task to start before it on a track that it needs, and the kind of that track."""
        best, what = -1, "start"
        for of, *key in self._track_keys(task):
            starts, tasks = self.tracks[of, *key]
            i = bisect_left(starts, self.start_K[task])
            if i and self._finish(tasks[i - 1]) > self._finish(best):
                best, what = tasks[i - 1], of
        return best, what

    def _track_keys(self, task: int) -> list[tuple[Any, ...]]:
        """The kind and the name of each track that it needs."""
        trace, t = self.trace, task - self.num_ops
        if task < self.num_ops:
            return [("device", trace.placement.device[task], trace.op_stream[task])]
        if task >= self.num_known:
            return self._keys_of_memory(task - self.num_known)
        src, dst = trace.transfer_src[t], trace.transfer_dst[t]
        if trace.rules.contention == "none":
            return []
        if trace.rules.contention == "sender":
            return [("device", src, 0)]
        keys: list[tuple[Any, ...]] = [("link", "sender", src), ("link", "receiver", dst)]
        if trace.rules.contention == "fifo":
            keys = [("link", src, dst)]
        if (hosts := trace.problem.cluster.hosts) and hosts[src] != hosts[dst]:
            keys.append(("interface", "out", hosts[src], trace.transfer_outlet[t]))
            keys.append(("interface", "in", hosts[dst], trace.transfer_inlet[t]))
        return keys

    def _keys_of_memory(self, i: int) -> list[tuple[Any, ...]]:
        """The same for a task of the memory plan: host copies have one link each way."""
        more, trace = self.trace.memory, self.trace
        assert more is not None
        device, kind = more.device[i], more.kinds[i]
        if kind == "recompute":
            return [("device", device, more.stream[i])]
        if trace.rules.contention == "none":
            return []
        if trace.rules.contention == "fifo":
            return [("link", kind, device)]
        return [("link", "sender" if kind == "evict" else "receiver", device)]
