"""The checks that every trace passes, simulated or measured.

Ops run where they may, and groups stay together. Producers end before consumers start. Streams run
one op at a time; channels, engines and (between hosts) network interfaces run one transfer at a
time. Each region moves exactly once to each foreign device that reads it, after its producer has
ended. Nothing waits for a free resource (work conservation). If memory was planned, copies to and
from the host and recomputed ops hold links and devices too, and no limit is exceeded at any time.
If tasks share resources, each takes as long as max-min fair rates say.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.trace.events import Trace
from doppler.trace.sharing import wrong_rates
from doppler.trace.usage import interface_holders

FloatArray = NDArray[np.float64]


def violations(trace: Trace, *, tolerance_s: float | None = None) -> list[str]:
    """Check a trace; return one line per broken rule.

    Args:
        trace: to check.
        tolerance_s: how far times may disagree, seconds. None: 1e-9 of the makespan plus the
            trace's own tolerance. If devices have separate clocks, it must cover the time that one
            needs to hear from another.
    """
    tolerance = tolerance_s
    if tolerance is None:
        tolerance = 1e-9 * trace.makespan_s + trace.tolerance_s
    found = [
        *_check_allowed(trace),
        *_check_transfers_complete(trace),
        *_check_precedence(trace, tolerance),
        *_check_interfaces(trace),
        *_check_exclusive(trace, tolerance),
        *_check_memory(trace),
    ]
    if trace.rules.shared:
        found += wrong_rates(trace, tolerance)
    if not found and trace.rules.work_conserving:
        found = _check_work_conserving(trace, tolerance)
    return found


def check(trace: Trace, *, tolerance_s: float | None = None) -> None:
    """Raise an AssertionError that names every rule that the trace breaks.

    Args:
        trace: to check.
        tolerance_s: as in `violations`.
    """
    found = violations(trace, tolerance_s=tolerance_s)
    assert not found, "; ".join(found[:5])


def _check_allowed(trace: Trace) -> list[str]:
    allowed = trace.problem.allows(trace.placement.device[None])[0]
    return [] if allowed else ["an op is where it may not run, or apart from its group"]


def _check_transfers_complete(trace: Trace) -> list[str]:
    regions, device_V = trace.problem.graph.regions, trace.placement.device
    src_R = device_V[regions.src]
    region_of_E = np.repeat(np.arange(len(regions)), np.diff(regions.consumer_ptr))
    dst_E = device_V[regions.consumers]
    remote_E = dst_E != src_R[region_of_E]
    expected = set(zip(region_of_E[remote_E].tolist(), dst_E[remote_E].tolist(), strict=True))
    listed = list(zip(trace.transfer_region.tolist(), trace.transfer_dst.tolist(), strict=True))
    found = [f"region {r} is never moved to device {d}" for r, d in expected - set(listed)]
    found += [f"region {r} is moved to device {d} for no op" for r, d in set(listed) - expected]
    if len(listed) != len(set(listed)):
        found.append("a region is moved twice to one device")
    if np.any(trace.transfer_src != src_R[trace.transfer_region]):
        found.append("a region is moved from a device that does not hold it")
    return found


def _check_precedence(trace: Trace, tolerance: float) -> list[str]:
    found = []
    for v in np.flatnonzero(trace.op_start_s < trace.op_ready_s() - tolerance):
        found.append(f"op {v} starts before its inputs are there")
    for t in np.flatnonzero(trace.transfer_start_s < trace.transfer_ready_s() - tolerance):
        found.append(f"transfer {t} starts before its producer has finished")
    for what, start, finish in (
        ("op", trace.op_start_s, trace.op_finish_s),
        ("transfer", trace.transfer_start_s, trace.transfer_finish_s),
    ):
        for i in np.flatnonzero(~((start >= 0) & (finish >= start))):
            found.append(f"{what} {i} runs from {start[i]} to {finish[i]}")
    return found


def _overlap(start: FloatArray, finish: FloatArray, tolerance: float) -> bool:
    order = np.lexsort((finish, start))
    return bool(np.any(start[order][1:] < finish[order][:-1] - tolerance))


def _holding_devices(trace: Trace) -> tuple[NDArray, NDArray, FloatArray, FloatArray]:
    """Like Trace.on_devices, plus the transfers that devices make themselves."""
    columns = trace.on_devices()
    if trace.rules.contention != "sender":
        return columns
    src, _, start_s, finish_s = trace.on_links()
    sent = src, np.zeros_like(src), start_s, finish_s
    device, stream, starts, finishes = map(np.concatenate, zip(columns, sent, strict=True))
    return device, stream, starts, finishes


def _tracks(trace: Trace) -> list[tuple[str, NDArray[np.bool_]]]:
    """Groups of transfers of which only one may run at a time."""
    if trace.rules.contention in ("none", "sender"):  # the latter on tracks of devices
        return []
    src, dst, *_ = trace.on_links()
    devices = range(trace.problem.num_devices)
    if trace.rules.contention == "fifo":
        pairs = np.unique(np.stack([src, dst], axis=1), axis=0).tolist()
        found = [(f"channel {s} -> {d}", (src == s) & (dst == d)) for s, d in pairs]
    else:
        found = [(f"sender {d}", src == d) for d in devices]
        found += [(f"receiver {d}", dst == d) for d in devices]
    for (host, nic, way), on_T in interface_holders(trace).items():
        on = np.concatenate([on_T, np.zeros(len(src) - len(on_T), bool)])
        found.append((f"interface {nic} of host {host}, {way}", on))
    return found


def _check_interfaces(trace: Trace) -> list[str]:
    """Transfers between hosts, and no others, hold an interface of each host."""
    cluster, rules = trace.problem.cluster, trace.rules
    crosses_T = cluster.between_hosts[trace.transfer_src, trace.transfer_dst]
    found = []
    for way, nic_T in (("outgoing", trace.transfer_outlet), ("incoming", trace.transfer_inlet)):
        needs_T = crosses_T & (rules.contention != "none") & (rules.interfaces in ("both", way))
        wrong_T = np.where(needs_T, (nic_T < 0) | (nic_T >= cluster.nics), nic_T != -1)
        for t in np.flatnonzero(wrong_T):
            found.append(f"transfer {t} holds the {way} interface {nic_T[t]}")
    return found


def _check_exclusive(trace: Trace, tolerance: float) -> list[str]:
    found = []
    device, streams, op_start_s, op_finish_s = _holding_devices(trace)
    *_, start_s, finish_s = trace.on_links()
    for d in range(trace.problem.num_devices):
        for stream in range(trace.rules.streams):
            on = (device == d) & (streams == stream)
            if _overlap(op_start_s[on], op_finish_s[on], tolerance):
                found.append(f"two tasks overlap on stream {stream} of device {d}")
    if np.any((streams < 0) | (streams >= trace.rules.streams)):
        found.append("an op runs on a stream that does not exist")
    for name, on in _tracks(trace):
        if _overlap(start_s[on], finish_s[on], tolerance):
            found.append(f"two transfers overlap on {name}")
    return found


def _idle_while_waiting(
    ready: float,
    start: float,
    starts: FloatArray,
    finishes: FloatArray,
    needed: list[tuple[NDArray[np.bool_], int]],
    tolerance: float,
) -> bool:
    """Whether everything that a task needs is free at some time in [ready, start).

    Args:
        ready: when the task was ready.
        start: when it started.
        starts: starts of the tasks of one kind.
        finishes: their ends.
        needed: for each resource, which of these tasks hold it, and how many may do so at a time.
        tolerance: of times.
    """
    if start <= ready + tolerance:
        return False
    on = np.any([holds for holds, _ in needed], axis=0) if needed else np.zeros(len(starts), bool)
    ends = finishes[on & (finishes > ready) & (finishes < start)]
    for begin in [ready, *ends.tolist()]:
        changes = [starts[on & (starts > begin)], finishes[on & (finishes > begin)], [start]]
        end = min(start, np.concatenate(changes).min())
        if end - begin <= tolerance:
            continue
        middle = 0.5 * (begin + end)
        runs = (starts <= middle) & (finishes > middle)
        if all(np.count_nonzero(runs & holds) < slots for holds, slots in needed):
            return True
    return False


def _check_memory(trace: Trace) -> list[str]:
    """No device exceeds its limit, and no task of the memory plan starts too early."""
    if (more := trace.memory) is None:
        return []
    found = [
        f"device {d} holds {rows[:, 1].max()} bytes, its limit is {limit}"
        for d, (rows, limit) in enumerate(zip(more.in_use, more.limit_bytes, strict=True))
        if len(rows) and rows[:, 1].max() > limit * (1 + 1e-9)
    ]
    first = trace.problem.num_ops + trace.num_transfers
    for i in np.flatnonzero(more.start_s < more.ready_s[first:] - 1e-9 * trace.makespan_s):
        found.append(f"{more.kinds[i]} of {more.names[i]} starts before it can")
    return found


def _check_work_conserving(trace: Trace, tolerance: float) -> list[str]:
    found, device_V = [], trace.placement.device
    device, _, op_start_s, op_finish_s = _holding_devices(trace)
    *_, start_s, finish_s = trace.on_links()
    ready_V = trace.op_ready_s()
    for v in range(trace.problem.num_ops):
        if _idle_while_waiting(
            ready_V[v],
            trace.op_start_s[v],
            op_start_s,
            op_finish_s,
            [(device == device_V[v], trace.rules.streams)],
            tolerance,
        ):
            found.append(f"op {v} waits although device {device_V[v]} is free")
    ready_T = trace.transfer_ready_s()
    if trace.rules.contention == "sender":
        return found + _check_sent_first(trace, ready_T, tolerance)
    for t in range(trace.num_transfers):
        if _idle_while_waiting(
            ready_T[t],
            trace.transfer_start_s[t],
            start_s,
            finish_s,
            _held(trace, t),
            tolerance,
        ):
            pair = f"{trace.transfer_src[t]} -> {trace.transfer_dst[t]}"
            found.append(f"transfer {t} ({pair}) waits although its link is free")
    return found


def _check_sent_first(trace: Trace, ready_T: FloatArray, tolerance: float) -> list[str]:
    """A device that makes transfers itself does nothing between an op and its last transfer."""
    found, src_T = [], trace.transfer_src
    for t in range(trace.num_transfers):
        begin, end = ready_T[t], trace.transfer_start_s[t]
        same = (src_T == src_T[t]) & (trace.transfer_start_s >= begin)
        busy_s = (trace.transfer_finish_s - trace.transfer_start_s)[
            same & (trace.transfer_finish_s <= end)
        ]
        if end - begin - busy_s.sum() > tolerance:
            found.append(f"transfer {t} waits although its device {src_T[t]} has ended the op")
    return found


def _held(trace: Trace, t: int) -> list[tuple[NDArray[np.bool_], int]]:
    """What transfer t needs: which transfers hold it too, and how many may do so at a time."""
    src_T, dst_T, *_ = trace.on_links()
    from_T, to_T = src_T == src_T[t], dst_T == dst_T[t]
    if trace.rules.contention == "none":
        return []
    needed = [(from_T & to_T, 1)] if trace.rules.contention == "fifo" else [(from_T, 1), (to_T, 1)]
    cluster, known = trace.problem.cluster, trace.rules.interfaces
    if cluster.between_hosts[src_T[t], dst_T[t]] and known != "none":
        host_D = np.tile(np.array(cluster.hosts), 2)  # a device's memory of the host is on it
        leaves_T = host_D[src_T] != host_D[dst_T]
        needed.append((leaves_T & (host_D[src_T] == host_D[src_T[t]]), cluster.nics))
        if known == "both":
            needed.append((leaves_T & (host_D[dst_T] == host_D[dst_T[t]]), cluster.nics))
    return needed
