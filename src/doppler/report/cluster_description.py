"""Describes a cluster in words: devices, hosts, links and network interfaces.

Shape suffix: D devices; N links of a class.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster, Device
from doppler.report.description import aligned, quantity
from doppler.trace.usage import time_text

_MAX_ROWS = 12


def describe_cluster(cluster: Cluster) -> list[str]:
    """Describe a cluster in lines of text.

    Args:
        cluster: to describe.
    """
    num_hosts = cluster.num_hosts
    on = f"on {num_hosts} hosts" if num_hosts > 1 else "on one host"
    devices = f"{cluster.num_devices} device" + ("s" if cluster.num_devices > 1 else "")
    lines = [f"cluster {cluster.name}: {devices} {on}"]
    if num_hosts > 1:
        lines.append(
            f"network interfaces of a host: {cluster.nics}, each {interface_figures(cluster)} "
            "either way"
        )
        apart_DD = cluster.between_hosts
        slowest = float(cluster.path_bytes_per_s[apart_DD].min())
        through = link_figures(slowest, cluster.path_latency_s[apart_DD].max())
        lines.append(f"transfers between hosts, link and interfaces together: {through}")
    kinds = {device.kind: device for device in reversed(cluster.devices)}
    numbers = Counter(device.kind for device in cluster.devices)
    rows = [("device", "number", "speed", "memory", "launch")]
    rows += [(kind, str(numbers[kind]), *device_figures(kinds[kind])) for kind in sorted(kinds)]
    lines += ["", *aligned(rows)]
    links = link_classes(cluster)
    rows = [("link", "pairs", "bytes/s", "latency")]
    for one in links[:_MAX_ROWS]:
        where = "to another host" if one.apart else "of a host" if num_hosts > 1 else "any"
        speed = _bounded(one.bytes_per_s, "B/s")
        rows.append((where, str(len(one.pairs)), speed, time_text(one.latency_s)))
    if len(links) > _MAX_ROWS:
        rows.append((f"{len(links) - _MAX_ROWS} more kinds", "", "", ""))
    lines += ["", *aligned(rows)] if links else []
    rows = [("shared", "bytes/s", "devices", "links")]
    for one in cluster.shared[:_MAX_ROWS]:
        rate = "processors" if one.bytes_per_s is None else _bounded(one.bytes_per_s, "B/s")
        rows.append((one.name, rate, str(len(one.devices)), str(len(set(one.links)))))
    if len(cluster.shared) > _MAX_ROWS:
        rows.append((f"{len(cluster.shared) - _MAX_ROWS} more", "", "", ""))
    return [*lines, *(["", *aligned(rows)] if cluster.shared else [])]


def cluster_counts(cluster: Cluster) -> dict[str, Any]:
    """Return what a summary holds about a cluster, for programs.

    Args:
        cluster: to describe.
    """
    return {
        "num_devices": cluster.num_devices,
        "num_hosts": cluster.num_hosts,
        "device_kinds": dict(sorted(Counter(one.kind for one in cluster.devices).items())),
        "nics": cluster.nics if cluster.num_hosts > 1 else 0,
    }


def device_figures(device: Device) -> tuple[str, str, str]:
    """Return a device's peak rate (f32 if it has one), memory and launch overhead as texts.

    Args:
        device: to describe.
    """
    dtype = "f32" if "f32" in device.flop_per_s else next(iter(device.flop_per_s))
    memory = f"{_bounded(device.memory_bytes, 'B')}, {_bounded(device.memory_bytes_per_s, 'B/s')}"
    speed = f"{_bounded(device.flop_per_s[dtype], 'FLOP/s')} {dtype}"
    return speed, memory, time_text(float(device.launch_overhead_s))


def link_figures(bytes_per_s: float, latency_s: float) -> str:
    """Return the figures of a link or an interface as text.

    Args:
        bytes_per_s: bandwidth.
        latency_s: latency.
    """
    return f"{_bounded(bytes_per_s, 'B/s')}, {time_text(float(latency_s))}"


def interface_figures(cluster: Cluster) -> str:
    """Return the figures of a cluster's network interface as text.

    Args:
        cluster: to describe.
    """
    return link_figures(cluster.nic_bytes_per_s, cluster.nic_latency_s)


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkClass:
    """Links with the same figures, without those of interfaces.

    Attributes:
        apart: whether they lead to another host.
        bytes_per_s: bandwidth.
        latency_s: latency.
        pairs: [N, 2] sender and receiver of each link.
    """

    apart: bool
    bytes_per_s: float
    latency_s: float
    pairs: NDArray[np.int64]


def link_classes(cluster: Cluster) -> list[LinkClass]:
    """Group all links by their figures, the fastest first and those between hosts last.

    Args:
        cluster: to describe.
    """
    pairs = np.argwhere(~np.eye(cluster.num_devices, dtype=bool))
    columns = (cluster.between_hosts, -cluster.bytes_per_s, cluster.latency_s)
    figures = np.stack([each[tuple(pairs.T)] for each in columns], axis=1)
    kinds, kind_of = np.unique(figures, axis=0, return_inverse=True)
    return [
        LinkClass(
            apart=bool(apart),
            bytes_per_s=-slowness,
            latency_s=latency_s,
            pairs=pairs[kind_of.ravel() == i],
        )
        for i, (apart, slowness, latency_s) in enumerate(kinds.tolist())
    ]


def _bounded(value: float, unit: str) -> str:
    return quantity(float(value), unit) if np.isfinite(value) else f"no limit of {unit}"
