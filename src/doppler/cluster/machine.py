"""Devices, the links between them, and their hosts.

Shape suffix: D devices, H hosts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.cluster.device import Device, MemoryBytes, is_number, with_memory
from doppler.cluster.sharing import SharedResource
from doppler.support.errors import InputError

# Kernels keep the interfaces of a host as bits of one number.
MAX_NICS = 60
# Default link between a device and its host's memory: PCI Express 3.0 x16.
HOST_BYTES_PER_S, HOST_LATENCY_S = 12e9, 10e-6
# From a device to itself.
_WITHIN = {"bytes_per_s": np.inf, "latency_s": 0.0}


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction between two devices: seconds = latency_s + bytes / bytes_per_s."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Cluster:
    """Devices and the links between them, on one host or on several.

    A transfer between two hosts occupies the link of its devices, an outgoing network interface of
    the sender's host and an incoming one of the receiver's host. Its bandwidth is the smaller of
    link and interface, its latency the sum of both. All devices of a host share its interfaces.

    Attributes:
        name: of the cluster.
        devices: of all hosts.
        bytes_per_s: [D, D] bandwidth of links, one row per sender. The diagonal is replaced by
            infinity, because nothing is sent from a device to itself.
        latency_s: [D, D] latency of links. The diagonal is replaced by 0.
        hosts: [D] the host of each device, numbered from 0; None: one host.
        nics: network interfaces per host. Each carries one transfer at a time in each direction.
        nic_bytes_per_s: bandwidth of an interface in each direction; irrelevant on one host.
        nic_latency_s: latency of an interface.
        host_bytes_per_s: bandwidth between a device and the memory of its host, in each direction.
        host_latency_s: latency between a device and the memory of its host.
        cores: whether devices are CPU cores, which make copies themselves. `doppler.place`
            simulates them so.
        shared: resources that several devices or links share and slow each other down on.

    Raises:
        InputError: no device, a matrix of another shape, a link or interface without bandwidth, a
            negative latency, a device that no link reaches, wrong hosts, or shared resources of
            other devices; names the device, pair or field.
    """

    name: str
    devices: tuple[Device, ...]
    bytes_per_s: NDArray[np.float64] = field(repr=False)
    latency_s: NDArray[np.float64] = field(repr=False)
    hosts: tuple[int, ...] | None = None
    nics: int = 1
    nic_bytes_per_s: float = np.inf
    nic_latency_s: float = 0.0
    host_bytes_per_s: float = HOST_BYTES_PER_S
    host_latency_s: float = HOST_LATENCY_S
    cores: bool = False
    shared: tuple[SharedResource, ...] = ()

    def __post_init__(self) -> None:
        num, where = len(self.devices), f"cluster {self.name!r}"
        if num < 1:
            raise InputError(f"{where}: needs at least one device, has {num}")
        if not isinstance(self.name, str):
            raise InputError(f"{where}: the name must be text")
        for column in _WITHIN:
            try:
                matrix = np.array(getattr(self, column), dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                raise InputError(f"{where}: {column} is not a matrix of numbers") from None
            if matrix.shape != (num, num):
                raise InputError(f"{where}: {column} has shape {matrix.shape} for {num} devices")
            np.fill_diagonal(matrix, _WITHIN[column])
            matrix.setflags(write=False)
            object.__setattr__(self, column, matrix)
        between = ~np.eye(num, dtype=bool)
        closed = between & ~(self.bytes_per_s > 0)
        for d in range(num):
            others = between[:, d]
            if num > 1 and closed[others, d].all():
                raise InputError(f"{where}: no link reaches device {d} ({self.devices[d].name})")
        for s, d in np.argwhere(closed):
            raise InputError(
                f"{where}: link {s} -> {d} has bandwidth {self.bytes_per_s[s, d]:g} bytes/s: "
                "must be positive"
            )
        for s, d in np.argwhere(between & ~(self.latency_s >= 0)):
            raise InputError(
                f"{where}: link {s} -> {d} has latency {self.latency_s[s, d]:g} s: "
                "must not be negative"
            )
        (name, most), *_ = Counter(device.name for device in self.devices).most_common(1)
        if most > 1:
            raise InputError(f"{where}: {most} devices are called {name!r}")
        self._check_hosts(where)
        self._check_shared(where)

    def _check_shared(self, where: str) -> None:
        names = [one.name for one in self.shared]
        for one in self.shared:
            one.check(where, self.num_devices)
            if names.count(one.name) > 1:
                raise InputError(f"{where}: two shared resources are called {one.name!r}")
            for s, d in one.links:
                if not np.isfinite(self.path_bytes_per_s[s, d]):
                    raise InputError(
                        f"{where}: link {s} -> {d} has no bandwidth of its own, so that its share "
                        f"of {one.name!r} is unknown"
                    )

    def _check_hosts(self, where: str) -> None:
        if self.hosts is not None:
            hosts = _host_numbers(where, self.hosts, self.num_devices)
            object.__setattr__(self, "hosts", hosts if max(hosts) else None)
        if not (type(self.nics) is int and 1 <= self.nics <= MAX_NICS):
            raise InputError(
                f"{where}: nics must be a whole number from 1 to {MAX_NICS}, got {self.nics!r}"
            )
        for key in ("nic_bytes_per_s", "host_bytes_per_s"):
            if not (is_number(rate := getattr(self, key)) and rate > 0):
                raise InputError(f"{where}: {key} must be positive, got {rate!r}")
        for key in ("nic_latency_s", "host_latency_s"):
            if not (is_number(seconds := getattr(self, key)) and 0 <= seconds < np.inf):
                raise InputError(f"{where}: {key} must not be negative, got {seconds!r}")

    def with_memory(self, memory_bytes: MemoryBytes | None) -> "Cluster":
        """Return the cluster with other memory sizes.

        Args:
            memory_bytes: one number for all devices, or one for each; None: unchanged.

        Raises:
            InputError: not one number for each device.
        """
        return replace(self, devices=tuple(with_memory(self.name, self.devices, memory_bytes)))

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return len(self.devices)

    @property
    def num_hosts(self) -> int:
        """Number of hosts, H."""
        return 1 if self.hosts is None else max(self.hosts) + 1

    @property
    def first_host(self) -> "Cluster":
        """The cluster reduced to the devices of the first host."""
        (here,) = np.nonzero(np.array(self.hosts or (0,) * self.num_devices) == 0)
        links = np.ix_(here, here)
        kept = (one.among(here.tolist()) for one in self.shared)
        return replace(
            self,
            devices=tuple(self.devices[d] for d in here),
            bytes_per_s=self.bytes_per_s[links],
            latency_s=self.latency_s[links],
            hosts=None,
            shared=tuple(one for one in kept if one is not None),
        )

    @property
    def between_hosts(self) -> NDArray[np.bool_]:
        """Whether two devices [D, D] are on different hosts."""
        host_D = np.array(self.hosts or (0,) * self.num_devices)
        return host_D[:, None] != host_D

    @property
    def path_bytes_per_s(self) -> NDArray[np.float64]:
        """Bandwidth [D, D] of transfers: that of the link, or of a slower interface."""
        slower = np.minimum(self.bytes_per_s, self.nic_bytes_per_s)
        return np.where(self.between_hosts, slower, self.bytes_per_s)

    @property
    def path_latency_s(self) -> NDArray[np.float64]:
        """Latency [D, D] of transfers: that of the link, plus the interface between hosts."""
        through_s = self.latency_s + self.nic_latency_s
        return np.where(self.between_hosts, through_s, self.latency_s)


def _host_numbers(where: str, hosts: Any, num: int) -> tuple[int, ...]:
    """Check the hosts of a cluster's devices."""
    given = list(hosts) if isinstance(hosts, Sequence | np.ndarray) else None
    whole = given is not None and all(
        isinstance(one, int | np.integer) and not isinstance(one, bool) for one in given
    )
    if given is None or not whole or len(given) != num:
        raise InputError(f"{where}: hosts must be {num} numbers, one per device, got {hosts!r}")
    numbers = tuple(map(int, given))
    missing = set(range(min(num, max(numbers) + 1))) - set(numbers)
    if min(numbers) < 0 or missing:
        wrong = f"host {min(missing)} has no device" if min(numbers) >= 0 else "negative"
        raise InputError(f"{where}: hosts must be numbered from 0 on, got {hosts!r}: {wrong}")
    return numbers


def on_hosts(
    cluster: Cluster,
    *,
    hosts: int | Sequence[int] | None,
    nics: int | None = None,
    nic_bytes_per_s: float | None = None,
    nic_latency_s: float | None = None,
    host_bytes_per_s: float | None = None,
    host_latency_s: float | None = None,
) -> Cluster:
    """Put the devices of a cluster on hosts.

    Args:
        cluster: the machine. Its values are kept where an argument below is None.
        hosts: their number (devices are divided equally, in order), or the host of each device.
        nics: network interfaces per host.
        nic_bytes_per_s: bandwidth of an interface.
        nic_latency_s: latency of an interface.
        host_bytes_per_s: bandwidth between a device and the memory of its host.
        host_latency_s: latency between a device and the memory of its host.

    Raises:
        InputError: the devices cannot be divided equally, or there are several hosts without
            bandwidth; also as in `Cluster`.
    """
    where, num = f"cluster {cluster.name!r}", cluster.num_devices
    if isinstance(hosts, int):
        if hosts < 1 or num % hosts:
            raise InputError(
                f"{where}: hosts={hosts} cannot share {num} devices equally; give the host of each"
            )
        hosts = [d * hosts // num for d in range(num)]
    given = {
        **{"hosts": hosts, "nics": nics, "nic_bytes_per_s": nic_bytes_per_s},
        **{"nic_latency_s": nic_latency_s, "host_bytes_per_s": host_bytes_per_s},
        "host_latency_s": host_latency_s,
    }
    made = replace(cluster, **{key: one for key, one in given.items() if one is not None})
    if made.num_hosts > 1 and not np.isfinite(made.nic_bytes_per_s):
        raise InputError(f"{where}: {made.num_hosts} hosts need nic_bytes_per_s")
    return made


def connected(*, name: str, devices: Sequence[Device], link: Callable[[int, int], Link]) -> Cluster:
    """Make a cluster on one host from a function that gives each link.

    Args:
        name: of the cluster.
        devices: of the cluster.
        link: the link from device s to device d, for s and d.
    """
    num = len(devices)
    bytes_per_s, latency_s = np.full((num, num), np.inf), np.zeros((num, num))
    for s in range(num):
        for d in range(num):
            if s != d:
                one = link(s, d)
                bytes_per_s[s, d], latency_s[s, d] = one.bytes_per_s, one.latency_s
    return Cluster(name=name, devices=tuple(devices), bytes_per_s=bytes_per_s, latency_s=latency_s)
