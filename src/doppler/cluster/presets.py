"""Presets of known machines; the source of each number is given beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from doppler.cluster.device import Device, Efficiency, MemoryBytes, with_memory
from doppler.cluster.machine import Cluster, Link, connected, on_hosts
from doppler.cluster.sharing import SharedSpec, read_shared
from doppler.cluster.written_out import Hosts
from doppler.support.options import Amount, Count, Devices, Positive, checked, one_of

# Peak rates and memory of the vendor's data sheets: NVIDIA Tesla P100 (SXM2), Tesla V100 (SXM2,
# 16 GB), A100 (SXM4, 40 GB), H100 (SXM5, 80 GB), without structured sparsity. f16 and f32 use
# tensor cores where frameworks do by default: V100 f16, A100 and H100 f16 and TF32. The launch
# overhead of 5 microseconds is that of an empty CUDA kernel when kernels are issued back to back.
P100 = Device(
    name="p100",
    flop_per_s={"f16": 21.2e12, "f32": 10.6e12, "f64": 5.3e12},
    memory_bytes_per_s=732e9,
    launch_overhead_s=5e-6,
    memory_bytes=16e9,
)
V100 = Device(
    name="v100",
    flop_per_s={"f16": 125e12, "f32": 15.7e12, "f64": 7.8e12},
    memory_bytes_per_s=900e9,
    launch_overhead_s=5e-6,
    memory_bytes=16e9,
)
A100 = Device(
    name="a100",
    flop_per_s={"f16": 312e12, "f32": 156e12, "f64": 19.5e12},
    memory_bytes_per_s=1555e9,
    launch_overhead_s=5e-6,
    memory_bytes=40e9,
)
H100 = Device(
    name="h100",
    flop_per_s={"f16": 989e12, "f32": 494e12, "f64": 67e12},
    memory_bytes_per_s=3350e9,
    launch_overhead_s=5e-6,
    memory_bytes=80e9,
)

# Rates of f32 products without TF32, which is torch's default (data sheets).
_WITHOUT_TF32 = {"a100": 19.5e12, "h100": 67e12, "h200": 67e12}

# Measured on an H100: square products of f32, TF32, f16 and f64, sums and products of elements, 64
# to 8192 rows. Other devices are assumed to reach the same shares.
MEASURED = Efficiency(compute=0.78, memory=0.9, half_flops=2e8, half_bytes=1.2e7)

# NVIDIA H200 (SXM): an H100 with more and faster memory (data sheet).
H200 = replace(H100, name="h200", memory_bytes_per_s=4800e9, memory_bytes=141e9)

# PCI Express 3.0 x16: 15.75 GB/s of which copies reach about 12. NVLink 2: 25 GB/s a link and
# direction. NVSwitch: 300 GB/s (A100) and 450 GB/s (H100) a GPU and direction. 100 Gbit/s
# InfiniBand between nodes.
PCIE3 = Link(bytes_per_s=12e9, latency_s=10e-6)
NVLINK2 = Link(bytes_per_s=25e9, latency_s=8e-6)
NVLINK2_DOUBLE = Link(bytes_per_s=50e9, latency_s=8e-6)
NVSWITCH_A100 = Link(bytes_per_s=300e9, latency_s=6e-6)
NVSWITCH_H100 = Link(bytes_per_s=450e9, latency_s=6e-6)
INFINIBAND = Link(bytes_per_s=12.5e9, latency_s=15e-6)

# Between hosts of a preset, the link leads from a device to its host's interfaces. PCI Express
# 4.0 and 5.0 x16: 32 and 64 GB/s a direction (data sheets of A100 and H100: 64 and 128 GB/s for
# both); latency as over PCI Express 3.0.
PCIE4 = Link(bytes_per_s=32e9, latency_s=10e-6)
PCIE5 = Link(bytes_per_s=64e9, latency_s=10e-6)
# Grace to Hopper: 900 GB/s for both directions ("NVIDIA Grace Hopper Superchip Architecture", white
# paper, 2022). Latency: a guess, less than over PCI Express.
NVLINK_C2C = Link(bytes_per_s=450e9, latency_s=5e-6)

# Links between a device and its host's memory, for each generation of GPUs by its data sheet.
HOST_LINKS = {"pcie3": PCIE3, "pcie4": PCIE4, "pcie5": PCIE5, "nvlink_c2c": NVLINK_C2C}
_HOST_LINK_OF = {"p100": "pcie3", "v100": "pcie3", "a100": "pcie4", "h100": "pcie5"}


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network of a preset's hosts.

    Attributes:
        devices_per_host: number of devices on a host.
        nics: network interfaces per host.
        nic_bytes_per_s: bandwidth of an interface.
        nic_latency_s: latency of an interface.
        way: the link between a device and the interfaces of its host.
    """

    devices_per_host: int
    nics: int
    nic_bytes_per_s: float
    nic_latency_s: float
    way: Link


# NVIDIA DGX H100: eight GPUs, and for the compute fabric eight single-port ConnectX-7 of 400
# Gbit/s ("NVIDIA DGX H100/H200 User Guide", key specifications). DGX A100: eight of each,
# ConnectX-6 of 200 Gbit/s ("NVIDIA DGX A100 System Architecture", white paper, 2020). Latency: with
# the way to the interface that of InfiniBand above; NCCL's model of its rings (src/graph/tuning.cc,
# protocol Simple) has 4 microseconds more for a step over a network than for one over PCI.
DGX_H100 = Network(devices_per_host=8, nics=8, nic_bytes_per_s=50e9, nic_latency_s=5e-6, way=PCIE5)
DGX_A100 = Network(devices_per_host=8, nics=8, nic_bytes_per_s=25e9, nic_latency_s=5e-6, way=PCIE4)
# Amazon EC2 p3.2xlarge: one V100 behind PCI Express, a network of up to 10 Gbit/s ("Amazon EC2 P3
# instances"). Latency: a guess for TCP between neighbours, like that of threads.
ETHERNET_10G = Network(
    devices_per_host=1, nics=1, nic_bytes_per_s=1.25e9, nic_latency_s=30e-6, way=PCIE3
)

# NVIDIA DGX-1 (V100) hybrid cube mesh, links per pair of GPUs of one node ("NVIDIA DGX-1 With
# Tesla V100 System Architecture", 2017, figure 4); pairs without a link go over PCI Express.
_CUBE_MESH = {
    **{(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2},
    **{(2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2},
}


def _cube_mesh_link(s: int, d: int) -> Link:
    if s // 8 != d // 8:
        return INFINIBAND
    low, high = sorted((s % 8, d % 8))
    return {0: PCIE3, 1: NVLINK2, 2: NVLINK2_DOUBLE}[_CUBE_MESH.get((low, high), 0)]


@dataclass(frozen=True)
class _Preset:
    num_devices: int
    device: Callable[[int], Device]
    link: Callable[[int, int], Link]
    network: Network | None = None


PRESETS: Mapping[str, _Preset] = {
    "p100x4": _Preset(4, lambda d: P100, lambda s, d: PCIE3),
    "v100x8": _Preset(8, lambda d: V100, _cube_mesh_link),
    "a100x8": _Preset(8, lambda d: A100, lambda s, d: NVSWITCH_A100),
    "h100x8": _Preset(8, lambda d: H100, lambda s, d: NVSWITCH_H100),
    # For graphs that come with their own times; other graphs use its speeds and links.
    "identical": _Preset(4, lambda d: P100, lambda s, d: PCIE3),
    # Two generations in one machine, over PCI Express.
    "mixed": _Preset(4, lambda d: V100 if d % 2 else P100, lambda s, d: PCIE3),
    # Several hosts: 2 and 4 DGX H100, 8 DGX A100 (40 GB a GPU), 4 machines of one V100.
    "dgx_h100x16": _Preset(16, lambda d: H100, lambda s, d: NVSWITCH_H100, DGX_H100),
    "dgx_h100x32": _Preset(32, lambda d: H100, lambda s, d: NVSWITCH_H100, DGX_H100),
    "dgx_a100x64": _Preset(64, lambda d: A100, lambda s, d: NVSWITCH_A100, DGX_A100),
    "ethernet_4x1": _Preset(4, lambda d: V100, lambda s, d: PCIE3, ETHERNET_10G),
}


@checked
def preset(
    *,
    name: Annotated[str, one_of(PRESETS)],
    num_devices: Devices | None = None,
    memory_bytes: MemoryBytes | None = None,
    allow_tf32: bool = True,
    efficiency: Literal["peak", "measured"] = "peak",
    hosts: Hosts | None = None,
    nics: Count | None = None,
    nic_bytes_per_s: Positive | None = None,
    nic_latency_s: Amount | None = None,
    host_link: Annotated[str, one_of(HOST_LINKS)] | None = None,
    host_bytes_per_s: Positive | None = None,
    host_latency_s: Amount | None = None,
    shared: Sequence[SharedSpec] | None = None,
) -> Cluster:
    """Make a known machine by its name.

    Args:
        name: one of PRESETS.
        num_devices: replaces the preset's number.
        memory_bytes: replaces the preset's memory size, one number for all devices or one for each.
        allow_tf32: run f32 products in TF32 on devices with tensor cores for it (A100, H100).
        efficiency: ``peak``: kernels reach the rates of the data sheets; ``measured``: they reach
            measured shares of them (`Efficiency`).
        hosts: number of hosts that share the devices, or the host of each device; by default as
            many hosts as the preset needs.
        nics: network interfaces per host, as in `Cluster`.
        nic_bytes_per_s: bandwidth of an interface in each direction.
        nic_latency_s: latency of an interface.
        host_link: name of the link between a device and the memory of its host; by default that of
            the device's generation.
        host_bytes_per_s: replaces the bandwidth of that link.
        host_latency_s: replaces the latency of that link.
        shared: resources that devices and links share, as in `custom`.

    Raises:
        InputError: an unknown name (the choices are listed), fewer than one device, devices that
            cannot be divided equally among hosts, or several hosts without bandwidth.
    """
    known = PRESETS[name]
    num = known.num_devices if num_devices is None else num_devices
    devices = [replace(known.device(d), name=f"{known.device(d).name}:{d}") for d in range(num)]
    devices = with_memory(name, devices, memory_bytes)
    if not allow_tf32:
        devices = [without_tf32(device) for device in devices]
    if efficiency == "measured":
        devices = [replace(device, efficiency=MEASURED) for device in devices]
    cluster = connected(name=name, devices=devices, link=known.link)
    network = known.network
    if network is not None:
        cluster = on_hosts(
            cluster,
            hosts=[d // network.devices_per_host for d in range(num)],
            nics=network.nics,
            nic_bytes_per_s=network.nic_bytes_per_s,
            nic_latency_s=network.nic_latency_s,
        )
    cluster = on_hosts(
        cluster,
        hosts=hosts,
        nics=nics,
        nic_bytes_per_s=nic_bytes_per_s,
        nic_latency_s=nic_latency_s,
    )
    way = HOST_LINKS[host_link or _HOST_LINK_OF[cluster.devices[0].kind]]
    cluster = replace(
        cluster,
        host_bytes_per_s=way.bytes_per_s if host_bytes_per_s is None else host_bytes_per_s,
        host_latency_s=way.latency_s if host_latency_s is None else host_latency_s,
    )
    if network is not None:
        cluster = _by_way_of(cluster, network.way)
    return replace(cluster, shared=read_shared(f"cluster {name!r}", shared, num))


def _by_way_of(cluster: Cluster, way: Link) -> Cluster:
    """The cluster with this link between devices of different hosts."""
    apart_DD = cluster.between_hosts
    return replace(
        cluster,
        bytes_per_s=np.where(apart_DD, way.bytes_per_s, cluster.bytes_per_s),
        latency_s=np.where(apart_DD, way.latency_s, cluster.latency_s),
    )


def without_tf32(device: Device) -> Device:
    """Return the device with its f32 rate when TF32 is not allowed.

    Args:
        device: of a preset.
    """
    rate = _WITHOUT_TF32.get(device.name.partition(":")[0])
    rates = device.flop_per_s if rate is None else {**device.flop_per_s, "f32": rate}
    return replace(device, flop_per_s=rates)
