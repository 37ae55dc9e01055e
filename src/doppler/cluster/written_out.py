"""Clusters that are written out in a configuration file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from doppler.cluster.device import Device, Efficiency, MemoryBytes, with_memory
from doppler.cluster.machine import Cluster, on_hosts
from doppler.cluster.sharing import SharedSpec, read_shared
from doppler.support.errors import InputError
from doppler.support.files.values import fault, unknown_key
from doppler.support.options import Amount, Count, Devices, Name, Natural, Positive, check

# The number of hosts, or the host of each device.
Hosts = Count | Sequence[Natural]


def custom(
    *,
    name: Name,
    devices: Sequence[Mapping],
    bytes_per_s: float | Sequence[Sequence[float]],
    latency_s: float | Sequence[Sequence[float]],
    num_devices: Devices | None = None,
    memory_bytes: MemoryBytes | None = None,
    hosts: Hosts | None = None,
    nics: Count | None = None,
    nic_bytes_per_s: Positive | None = None,
    nic_latency_s: Amount | None = None,
    host_bytes_per_s: Positive | None = None,
    host_latency_s: Amount | None = None,
    shared: Sequence[SharedSpec] | None = None,
) -> Cluster:
    """Make a cluster from devices that a configuration file describes.

    Args:
        name: of the cluster.
        devices: a mapping of `Device` fields for each device. A name that several have gets the
            number of each.
        bytes_per_s: bandwidth, one number for all links or a [D, D] matrix with a row per sender.
        latency_s: latency, likewise.
        num_devices: number of devices; a single description is repeated so often.
        memory_bytes: one number, or one per device; replaces what the devices say.
        hosts: number of hosts, or the host of each device.
        nics: network interfaces per host, as in `Cluster`.
        nic_bytes_per_s: bandwidth of an interface in each direction.
        nic_latency_s: latency of an interface.
        host_bytes_per_s: bandwidth between a device and the memory of its host.
        host_latency_s: latency between a device and the memory of its host.
        shared: resources that devices and links share, a mapping of `SharedResource` fields for
            each.

    Raises:
        InputError: names the field that is wrong.
    """
    if num_devices is not None and len(devices) == 1:
        devices = [devices[0]] * num_devices
    num = len(devices)
    if num_devices not in (None, num):
        raise InputError(f"cluster {name!r}: num_devices is {num_devices}, but it has {num}")
    built = _numbered([_device(name, i, spec) for i, spec in enumerate(devices)])
    built = with_memory(name, built, memory_bytes)
    for key, kind, value in (
        ("hosts", Hosts, hosts),
        ("nics", Count, nics),
        ("nic_bytes_per_s", Positive, nic_bytes_per_s),
        ("nic_latency_s", Amount, nic_latency_s),
        ("host_bytes_per_s", Positive, host_bytes_per_s),
        ("host_latency_s", Amount, host_latency_s),
    ):
        if value is not None:
            check(f"cluster {name!r}: {key}", kind, value)
    return on_hosts(
        Cluster(
            name=name,
            devices=tuple(built),
            bytes_per_s=_of_links(f"cluster {name!r}: bytes_per_s", bytes_per_s, num),
            latency_s=_of_links(f"cluster {name!r}: latency_s", latency_s, num),
            shared=read_shared(f"cluster {name!r}", shared, num),
        ),
        hosts=hosts,
        nics=nics,
        nic_bytes_per_s=nic_bytes_per_s,
        nic_latency_s=nic_latency_s,
        host_bytes_per_s=host_bytes_per_s,
        host_latency_s=host_latency_s,
    )


def _of_links(where: str, value: object, num: int) -> NDArray[np.float64]:
    """A [D, D] matrix from one number for all links or from a matrix."""
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where} is neither a number nor a matrix: {value!r}") from None
    if matrix.ndim == 0:
        matrix = np.full((num, num), matrix)
    between = ~np.eye(num, dtype=bool) if matrix.shape == (num, num) else True
    if np.isinf(matrix, where=between, out=np.zeros(matrix.shape, bool)).any():
        raise InputError(f"{where} must be finite")
    return matrix


def _numbered(devices: list[Device]) -> list[Device]:
    """The devices, with their numbers in names that several have: ``gpu:0``, ``gpu:1``."""
    times = Counter(device.name for device in devices)
    return [
        replace(device, name=f"{device.name}:{d}") if times[device.name] > 1 else device
        for d, device in enumerate(devices)
    ]


def _device(cluster: str, number: int, spec: Mapping) -> Device:
    """One device of a configuration file."""
    where = f"devices[{number}]"
    if not isinstance(spec, Mapping):
        raise fault(f"cluster {cluster!r}: {where}", "a mapping", spec)
    known = [one.name for one in fields(Device)]
    for key in spec:
        if key not in known:
            raise InputError(f"cluster {cluster!r}: {unknown_key(where, key, known)}")
    for key in known[1:-2]:
        if key not in spec:
            raise InputError(f"cluster {cluster!r}: {where}: {key!r} is missing")
    efficiency = _efficiency(f"cluster {cluster!r}: {where}", spec.get("efficiency"))
    device = Device(**{"name": f"device{number}", **spec, "efficiency": efficiency})
    numbers = (device.memory_bytes_per_s, device.launch_overhead_s, device.memory_bytes)
    if not np.isfinite([*numbers, *device.flop_per_s.values()]).all():
        raise InputError(f"cluster {cluster!r}: {where}: every number must be finite")
    return device


def _efficiency(where: str, spec: object) -> Efficiency | None:
    known = [one.name for one in fields(Efficiency)]
    if spec is None:
        return None
    if not isinstance(spec, Mapping):
        raise fault(f"{where}: efficiency", f"a mapping of {', '.join(known)}", spec)
    for key in spec:
        if key not in known:
            raise InputError(unknown_key(f"{where}: efficiency", key, known))
    for key in known:
        if key not in spec:
            raise InputError(f"{where}: efficiency: {key!r} is missing")
    return Efficiency(**spec)
