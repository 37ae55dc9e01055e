"""How busy links and network interfaces were, and seconds and bytes in words.

Shape suffixes: T transfers, N tasks, D devices.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from doppler.trace.events import Trace

FloatArray = NDArray[np.float64]
Way = Literal["out", "in"]


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """What one ordered pair of devices carried; busy_s counts overlapping transfers once."""

    src: int
    dst: int
    num_transfers: int
    bytes: float
    busy_s: float
    utilisation: float


@dataclass(frozen=True, kw_only=True)
class InterfaceUse:
    """What one network interface of a host carried one way: out of the host, or into it."""

    host: int
    nic: int
    way: Way
    num_transfers: int
    bytes: float
    busy_s: float
    utilisation: float


def busy_seconds(start_s: FloatArray, finish_s: FloatArray) -> float:
    """Seconds in which at least one of the tasks [N] runs."""
    order = np.argsort(start_s, kind="stable")
    start, finish = start_s[order], finish_s[order]
    covered = np.maximum.accumulate(np.concatenate([[0.0], finish]))[:-1]
    return float(np.maximum(finish - np.maximum(start, covered), 0.0).sum())


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a duration reads well: its length in seconds and its symbol."""
    for unit_s, symbol in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit_s:
            return unit_s, symbol
    return (1e-9, "ns") if seconds > 0 else (1.0, "s")


def time_text(seconds: float) -> str:
    """Seconds in a readable unit, three digits."""
    unit_s, symbol = time_unit(seconds)
    return f"{seconds / unit_s:.3g} {symbol}" if seconds < 1000 else f"{seconds:.0f} s"


def bytes_text(num: float) -> str:
    """Bytes in a readable decimal unit, three digits."""
    for unit, symbol in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num >= unit:
            return f"{num / unit:.3g} {symbol}"
    return f"{num:.0f} B"


def links_used(trace: Trace) -> tuple[LinkUse, ...]:
    """What each ordered pair of devices carried, the busiest first."""
    bytes_T = trace.problem.graph.regions.bytes[trace.transfer_region]
    pair_T = np.stack([trace.transfer_src, trace.transfer_dst], axis=1)
    found = []
    for src, dst in np.unique(pair_T, axis=0).tolist():
        on = (trace.transfer_src == src) & (trace.transfer_dst == dst)
        busy_s = busy_seconds(trace.transfer_start_s[on], trace.transfer_finish_s[on])
        found.append(
            LinkUse(
                src=src,
                dst=dst,
                num_transfers=int(on.sum()),
                bytes=float(bytes_T[on].sum()),
                busy_s=busy_s,
                utilisation=busy_s / (trace.makespan_s or 1.0),
            )
        )
    return tuple(sorted(found, key=lambda use: (-use.busy_s, use.src, use.dst)))


def interface_holders(trace: Trace) -> dict[tuple[int, int, Way], NDArray[np.bool_]]:
    """The interface of each transfer [T], its host, and its direction."""
    host_D = np.array(trace.problem.cluster.hosts or (0,) * trace.problem.num_devices)
    found: dict[tuple[int, int, Way], NDArray[np.bool_]] = {}
    ends: tuple[tuple[Way, NDArray, NDArray], ...] = (
        ("out", trace.transfer_src, trace.transfer_outlet),
        ("in", trace.transfer_dst, trace.transfer_inlet),
    )
    for way, device_T, nic_T in ends:
        used = np.stack([host_D[device_T], nic_T], axis=1)[nic_T >= 0]
        for host, nic in np.unique(used, axis=0).tolist():
            found[host, nic, way] = (host_D[device_T] == host) & (nic_T == nic)
    return found


def interfaces_used(trace: Trace) -> tuple[InterfaceUse, ...]:
    """What each network interface carried each way, the busiest first; none on one host."""
    bytes_T = trace.problem.graph.regions.bytes[trace.transfer_region]
    found = []
    for (host, nic, way), on in interface_holders(trace).items():
        busy_s = busy_seconds(trace.transfer_start_s[on], trace.transfer_finish_s[on])
        found.append(
            InterfaceUse(
                host=host,
                nic=nic,
                way=way,
                num_transfers=int(on.sum()),
                bytes=float(bytes_T[on].sum()),
                busy_s=busy_s,
                utilisation=busy_s / (trace.makespan_s or 1.0),
            )
        )
    return tuple(sorted(found, key=lambda use: (-use.busy_s, use.host, use.nic, use.way)))
