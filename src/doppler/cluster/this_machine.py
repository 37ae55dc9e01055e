"""The machine that this process runs on, as a cluster."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from doppler.cluster.device import Device, MemoryBytes, with_memory
from doppler.cluster.machine import Cluster, Link, connected
from doppler.cluster.nvml import MachineFacts, read_machine
from doppler.cluster.presets import A100, H100, H200, NVLINK2, P100, PCIE3, V100, without_tf32
from doppler.cluster.sharing import SharedResource, read_shared
from doppler.support.errors import InputError
from doppler.support.options import Amount, Devices, Name, Positive, checked

# Guesses, until stage=calibrate measures them: one core with vector units, ordinary memory, and
# the time that Python takes to start an op.
CORE = Device(
    name="cpu",
    flop_per_s={"f16": 2e10, "f32": 4e10, "f64": 2e10},
    memory_bytes_per_s=5e9,
    launch_overhead_s=20e-6,
    memory_bytes=4e9,
)
# The share of the PCI Express rate that copies reach: 12 of 15.75 GB/s.
_REACHED = 0.76
THREAD_TO_THREAD = Link(bytes_per_s=4e9, latency_s=30e-6)


@checked
def host(
    *,
    name: Name = "host",
    device_type: Literal["cpu", "cuda"] = "cpu",
    num_devices: Devices,
    memory_bytes: MemoryBytes | None = None,
    host_bytes_per_s: Positive | None = None,
    host_latency_s: Amount | None = None,
    shared: Sequence[Mapping] | None = None,
) -> Cluster:
    """Describe this machine as a cluster; devices divide memory equally, and speeds are guesses.

    Args:
        name: of the cluster.
        device_type: ``cpu``: devices are cores. ``cuda``: devices are GPUs with the speed of the
            preset that matches their name, else of an A100. With more devices than GPUs, several
            share one. NVML, if available, reports the bandwidth of their memory, how they are
            linked and which links share a switch.
        num_devices: cores or GPUs; at least one.
        memory_bytes: replaces the equal share; one number for all devices or one for each.
        host_bytes_per_s: bandwidth between a device and the memory of the host; by default as
            between two devices.
        host_latency_s: latency between a device and the memory of the host.
        shared: resources that devices and links share, as in `custom`; those of GPU streams and
            links are added in any case.

    Raises:
        InputError: fewer than one device, another device type, or no GPU with ``cuda``.
    """
    facts = None
    if device_type == "cuda":
        facts = read_machine()
        gpus = _gpus(name, num_devices, facts)
        devices, link = [gpus[d % len(gpus)] for d in range(num_devices)], _links(gpus, facts)
    else:
        share_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / num_devices
        devices = [replace(CORE, memory_bytes=share_bytes)] * num_devices
        gpus, link = [], lambda s, d: THREAD_TO_THREAD
    devices = [replace(one, name=f"{device_type}:{d}") for d, one in enumerate(devices)]
    together = read_shared(f"cluster {name!r}", shared, num_devices)
    if device_type == "cuda":
        together += shared_by_streams(num_devices, gpus)
        together += () if facts is None else shared_links(num_devices, facts)
    devices = with_memory(name, devices, memory_bytes)
    way = THREAD_TO_THREAD if device_type == "cpu" else PCIE3
    if facts is not None and (rate := facts.gpus[0].pcie_bytes_per_s):
        way = replace(way, bytes_per_s=_REACHED * rate)
    return replace(
        connected(name=name, devices=devices, link=link),
        host_bytes_per_s=way.bytes_per_s if host_bytes_per_s is None else host_bytes_per_s,
        host_latency_s=way.latency_s if host_latency_s is None else host_latency_s,
        cores=device_type == "cpu",
        shared=together,
    )


def num_gpus() -> int:
    """Return how many GPUs this machine has."""
    import torch  # imported here because nothing else in this layer needs it

    return torch.cuda.device_count()


def shared_by_streams(num_devices: int, gpus: Sequence[Device]) -> tuple[SharedResource, ...]:
    """Return what devices that are streams of one GPU share: its processors and its memory.

    Args:
        num_devices: device d is on GPU d modulo the number of GPUs.
        gpus: of the machine.
    """
    found = []
    for gpu, device in enumerate(gpus):
        streams = tuple(range(gpu, num_devices, len(gpus)))
        if len(streams) < 2:
            continue
        # A copy within a GPU reads its memory and writes to it.
        links = tuple((s, d) for s in streams for d in streams if s != d for _ in range(2))
        found.append(SharedResource(name=f"processors of GPU {gpu}", devices=streams))
        found.append(
            SharedResource(
                name=f"memory of GPU {gpu}",
                bytes_per_s=device.memory_bytes_per_s,
                devices=streams,
                links=links,
            )
        )
    return tuple(found)


def shared_links(num_devices: int, facts: MachineFacts) -> tuple[SharedResource, ...]:
    """Return what links between GPUs share: ports of GPUs and of PCI Express switches.

    Args:
        num_devices: device d is on GPU d modulo the number of GPUs.
        facts: of the GPUs.
    """
    num = len(facts.gpus)
    found: list[SharedResource] = []
    on = [d % num for d in range(num_devices)]
    pairs = [(s, d) for s in range(num_devices) for d in range(num_devices) if on[s] != on[d]]
    over_pcie = [(s, d) for s, d in pairs if not nvlink_bytes_per_s(facts, on[s], on[d])]
    over_switch = [
        (s, d) for s, d in pairs if (s, d) not in over_pcie and not facts.nvlinks[on[s]][on[d]]
    ]

    def port(name: str, rate: float | None, inside: set[int], ways: list[tuple[int, int]]) -> None:
        out = tuple((s, d) for s, d in ways if on[s] in inside and on[d] not in inside)
        into = tuple((s, d) for s, d in ways if on[s] not in inside and on[d] in inside)
        for way, links in (("out of", out), ("into", into)):
            if rate and len(links) > 1:
                named = f"{way} {name}"
                found.append(SharedResource(name=named, bytes_per_s=rate, links=links))

    for gpu in facts.gpus:
        inside = {gpu.number}
        port(
            f"PCI Express of GPU {gpu.number}", pcie_bytes_per_s(facts, *inside), inside, over_pcie
        )
        port(f"NVLink of GPU {gpu.number}", gpu.nvlink_bytes_per_s, inside, over_switch)
    for group in facts.switch_groups():
        if len(group) < num:
            names = ", ".join(map(str, group))
            rate = pcie_bytes_per_s(facts, *group)
            port(f"the switch of GPUs {names}", rate, set(group), over_pcie)
    return tuple(found)


def nvlink_bytes_per_s(facts: MachineFacts, src: int, dst: int) -> float:
    """Return the NVLink bandwidth from one GPU to another, direct or by switches; 0 without NVLink.

    Args:
        facts: of the GPUs.
        src: number of the sender.
        dst: number of the receiver.
    """
    switched = min(facts.gpus[g].nvlink_bytes_per_s for g in (src, dst))
    return max(facts.nvlinks[src][dst], switched)


def pcie_bytes_per_s(facts: MachineFacts, *gpus: int) -> float | None:
    """Return what copies reach on PCI Express, for the slowest of some GPUs; None if unknown.

    Args:
        facts: of the GPUs.
        gpus: their numbers.
    """
    rates = [rate for gpu in gpus if (rate := facts.gpus[gpu].pcie_bytes_per_s)]
    return _REACHED * min(rates) if rates else None


def _gpus(name: str, num_devices: int, facts: MachineFacts | None) -> list[Device]:
    """The GPUs of this machine; each device on a GPU has an equal share of its memory."""
    import torch

    num = num_gpus()
    if num == 0:
        raise InputError(f"cluster {name!r}: there is no GPU")
    gpus = []
    for i in range(num):
        properties = torch.cuda.get_device_properties(i)
        known = (one for one in (P100, V100, H100, H200) if one.name in properties.name.lower())
        share = len(range(i, num_devices, num)) or 1
        gpu = replace(next(known, A100), memory_bytes=properties.total_memory / share)
        rate = None if facts is None else facts.gpus[i].memory_bytes_per_s
        gpus.append(gpu if rate is None else replace(gpu, memory_bytes_per_s=rate))
    if torch.get_float32_matmul_precision() == "highest":
        gpus = [without_tf32(gpu) for gpu in gpus]
    return gpus


def _links(gpus: Sequence[Device], facts: MachineFacts | None) -> Callable[[int, int], Link]:
    """The link from one device to another; device d is on GPU d modulo their number."""
    num = len(gpus)

    def link(s: int, d: int) -> Link:
        if s % num == d % num:  # a copy within a GPU reads its memory and writes to it
            gpu = gpus[s % num]
            return Link(bytes_per_s=gpu.memory_bytes_per_s / 2, latency_s=gpu.launch_overhead_s)
        if facts is None:
            return PCIE3
        if rate := nvlink_bytes_per_s(facts, s % num, d % num):
            return replace(NVLINK2, bytes_per_s=rate)
        rate = pcie_bytes_per_s(facts, s % num, d % num)
        return replace(PCIE3, bytes_per_s=rate) if rate else PCIE3

    return link
