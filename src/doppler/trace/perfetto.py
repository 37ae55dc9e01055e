"""A trace as Chrome-trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Shape suffixes: V ops, T transfers.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.graph.formats import write_atomically
from doppler.trace.causes import Step
from doppler.trace.events import Trace
from doppler.trace.explain import explain
from doppler.trace.usage import interface_holders

CHAIN, DEVICES, LINKS, INTERFACES, MEMORY = 1, 2, 3, 4, 5
_GROUPS = {CHAIN: "critical chain", DEVICES: "devices", LINKS: "links"}
Event = dict[str, Any]
Point = tuple[int, int, float]  # process, track, and a time inside a slice in microseconds


def save_perfetto(trace: Trace, path: str | Path) -> None:
    """Write a trace for https://ui.perfetto.dev as JSON, atomically.

    The critical chain, devices, links, network interfaces and memory are a process each, with a
    track for each stream, link, and direction of an interface. Arrows lead from an op to the
    transfers of its output, and on to their consumers. Tasks that overlap on one track, such as
    transfers without contention, are spread over several.
    """
    sheet = _Sheet()
    explanation = explain(trace)
    critical = {(step.kind, step.id) for step in explanation.chain}
    _add_chain(sheet, explanation.chain)
    op_tid = _add_ops(sheet, trace, critical)
    transfer_tid = _add_transfers(sheet, trace, critical)
    _add_flows(sheet, trace, op_tid, transfer_tid)
    _add_interfaces(sheet, trace)
    _add_memory(sheet, trace)
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "graph": trace.problem.graph.name,
            "cluster": trace.problem.cluster.name,
            "problem_hash": trace.problem.hash,
            "system_kind": trace.system_kind,
            "makespan_s": trace.makespan_s,
            "streams": trace.rules.streams,
            "contention": trace.rules.contention,
            "queue": trace.rules.queue,
        },
        "traceEvents": sheet.events,
    }
    write_atomically(path, json.dumps(document, separators=(",", ":")) + "\n")


class _Sheet:
    """The list of events, and the numbers of its tracks."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.num_tracks = 0
        self.num_flows = 0
        for pid, name in _GROUPS.items():
            self.add_group(pid, name)

    def add_group(self, pid: int, name: str) -> None:
        """A process, which is what viewers call a group of tracks."""
        self._describe("process_name", pid, 0, name=name)
        self._describe("process_sort_index", pid, 0, sort_index=pid)

    def _describe(self, what: str, pid: int, tid: int, **args: object) -> None:
        self.events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    def add_tracks(self, pid: int, name: str, slices: list[Event]) -> list[int]:
        """Add slices as one track, or as several if they overlap; returns each one's track."""
        first = self.num_tracks + 1
        starts = np.array([one["start_ns"] for one in slices], dtype=np.int64)
        finishes = np.array([one["finish_ns"] for one in slices], dtype=np.int64)
        lane_N, num_lanes = assign_lanes(starts, finishes)
        # Thread ids are unique over all processes: some viewers take them so.
        self.num_tracks += num_lanes
        for lane in range(num_lanes):
            label = name if lane == 0 else f"{name} ({lane + 1})"
            self._describe("thread_name", pid, first + lane, name=label)
            self._describe("thread_sort_index", pid, first + lane, sort_index=first + lane)
        for one, lane in zip(slices, lane_N.tolist(), strict=True):
            start, finish = one.pop("start_ns"), one.pop("finish_ns")
            at = {"pid": pid, "tid": first + lane, "ts": start / 1e3, "dur": (finish - start) / 1e3}
            self.events.append({"ph": "X", **one, **at})
        return (first + lane_N).tolist()

    def add_flow(self, name: str, begin: Point | None, end: Point | None) -> None:
        """An arrow between two slices; none where a slice has no inside."""
        if begin is None or end is None:
            return
        self.num_flows += 1
        common = {"cat": "data", "name": name, "id": self.num_flows}
        for phase, (pid, tid, ts) in (("s", begin), ("f", end)):
            bind = {"bp": "e"} if phase == "f" else {}
            self.events.append({"ph": phase, **common, **bind, "pid": pid, "tid": tid, "ts": ts})


def assign_lanes(
    start: NDArray[np.int64], finish: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Spread tasks over lanes without overlap: the lane of each task [N], and how many there are.

    Each task takes the first lane that is free, in order of start: the fewest lanes possible.
    """
    lane_N = np.zeros(len(start), dtype=np.int64)
    ends: list[int] = []
    for i in np.lexsort((finish, start)).tolist():
        lane = next((j for j, end in enumerate(ends) if end <= start[i]), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = int(finish[i])
        lane_N[i] = lane
    return lane_N, max(1, len(ends))


def _nanoseconds(seconds: float) -> int:
    # Viewers count whole nanoseconds. Rounding begin and end, not begin and duration, keeps tasks
    # that touch from overlapping.
    return round(seconds * 1e9)


def _slice(name: str, category: str, start_s: float, finish_s: float, args: Event) -> Event:
    return {
        "name": name,
        "cat": category,
        "start_ns": _nanoseconds(start_s),
        "finish_ns": _nanoseconds(finish_s),
        "args": args,
    }


def _add_chain(sheet: _Sheet, chain: Iterable[Step]) -> None:
    slices = [
        _slice(
            f"{step.name} ({step.where})",
            step.kind,
            step.start_s,
            step.finish_s,
            {step.kind: step.id, "waited_for": step.waited_for, "queued_us": step.queued_s * 1e6},
        )
        for step in chain
    ]
    sheet.add_tracks(CHAIN, "critical chain", slices)


def _add_ops(sheet: _Sheet, trace: Trace, critical: set) -> list[int]:
    ops, streams = trace.problem.graph.ops, trace.rules.streams
    tid = [0] * trace.problem.num_ops
    for d, device in enumerate(trace.problem.cluster.devices):
        for stream in range(streams):
            on = np.flatnonzero((trace.placement.device == d) & (trace.op_stream == stream))
            slices = [
                _slice(
                    ops.names[v],
                    "op",
                    trace.op_start_s[v],
                    trace.op_finish_s[v],
                    {
                        "op": v,
                        "kind": ops.kinds[v],
                        "node": int(ops.node[v]),
                        "block": int(ops.block[v]),
                        "flops": float(ops.flops[v]),
                        "bytes": float(ops.output_bytes[v]),
                        "priority": int(trace.placement.priority[v]),
                        "critical": ("op", v) in critical,
                    },
                )
                for v in on.tolist()
            ]
            label = f"device {d}: {device.name}" + (f", stream {stream}" if streams > 1 else "")
            for v, track in zip(on, sheet.add_tracks(DEVICES, label, slices), strict=True):
                tid[v] = track
    return tid


def _add_transfers(sheet: _Sheet, trace: Trace, critical: set) -> list[int]:
    graph, tid = trace.problem.graph, [0] * trace.num_transfers
    pair_T = np.stack([trace.transfer_src, trace.transfer_dst], axis=1)
    for src, dst in np.unique(pair_T, axis=0).tolist():
        on = np.flatnonzero((trace.transfer_src == src) & (trace.transfer_dst == dst))
        slices = []
        for t in on.tolist():
            region = int(trace.transfer_region[t])
            producer = int(graph.regions.src[region])
            args = {
                "transfer": t,
                "kind": "transfer",
                "region": region,
                "producer": producer,
                "node": int(graph.ops.node[producer]),
                "bytes": float(graph.regions.bytes[region]),
                "critical": ("transfer", t) in critical,
            }
            start_s, finish_s = trace.transfer_start_s[t], trace.transfer_finish_s[t]
            slices.append(_slice(graph.ops.names[producer], "transfer", start_s, finish_s, args))
        for t, track in zip(on, sheet.add_tracks(LINKS, f"{src} -> {dst}", slices), strict=True):
            tid[t] = track
    return tid


def _add_interfaces(sheet: _Sheet, trace: Trace) -> None:
    """Transfers between hosts once more, by the interfaces that they go through."""
    holders, names = interface_holders(trace), trace.problem.graph.ops.names
    if holders:
        sheet.add_group(INTERFACES, "network interfaces")
    for (host, nic, way), on in sorted(holders.items()):
        slices = []
        for t in np.flatnonzero(on).tolist():
            producer = int(trace.problem.graph.regions.src[trace.transfer_region[t]])
            times = (trace.transfer_start_s[t], trace.transfer_finish_s[t])
            pair = f"{trace.transfer_src[t]} -> {trace.transfer_dst[t]}"
            slices.append(
                _slice(f"{names[producer]} ({pair})", "transfer", *times, {"transfer": t})
            )
        sheet.add_tracks(INTERFACES, f"host {host} nic {nic} {way}", slices)


def _add_memory(sheet: _Sheet, trace: Trace) -> None:
    """Evictions, loads and ops computed again, by device; and the bytes in use over time."""
    if (more := trace.memory) is None:
        return
    sheet.add_group(MEMORY, "memory")
    for d, rows in enumerate(more.in_use):
        slices = [
            _slice(
                f"{kind} {name}",
                kind,
                more.start_s[i],
                more.finish_s[i],
                {"bytes": float(more.bytes[i])},
            )
            for i, (kind, name) in enumerate(zip(more.kinds, more.names, strict=True))
            if more.device[i] == d
        ]
        sheet.add_tracks(MEMORY, f"device {d} and its host", slices)
        for at, held in rows.tolist():
            sheet.events.append(
                {
                    **{"ph": "C", "name": f"bytes on device {d}", "pid": MEMORY, "tid": 0},
                    **{"ts": _nanoseconds(at) / 1e3, "args": {"bytes": held}},
                }
            )


def _inside(pid: int, tid: int, start_s: float, finish_s: float, share: float) -> Point | None:
    """A point of a slice for an arrow: at its very border an arrow may bind to a neighbour."""
    start, finish = _nanoseconds(start_s), _nanoseconds(finish_s)
    if finish <= start:
        return None
    return pid, tid, (start + int(share * (finish - start))) / 1e3


def _add_flows(sheet: _Sheet, trace: Trace, op_tid: list[int], transfer_tid: list[int]) -> None:
    graph, device_V = trace.problem.graph, trace.placement.device
    regions = graph.regions

    def op_point(v: int, share: float) -> Point | None:
        return _inside(DEVICES, op_tid[v], trace.op_start_s[v], trace.op_finish_s[v], share)

    for t in range(trace.num_transfers):
        r = int(trace.transfer_region[t])
        producer, name = int(regions.src[r]), graph.ops.names[int(regions.src[r])]
        start_s, finish_s = trace.transfer_start_s[t], trace.transfer_finish_s[t]
        sent = _inside(LINKS, transfer_tid[t], start_s, finish_s, 0.1)
        arrived = _inside(LINKS, transfer_tid[t], start_s, finish_s, 0.9)
        sheet.add_flow(name, op_point(producer, 0.9), sent)
        for v in regions.consumers[regions.consumer_ptr[r] : regions.consumer_ptr[r + 1]].tolist():
            if device_V[v] == trace.transfer_dst[t]:
                sheet.add_flow(name, arrived, op_point(v, 0.1))
