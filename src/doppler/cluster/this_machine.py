"""The machine that a run is on, as a cluster."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from doppler.cluster.device import Device, MemoryBytes, with_memory
from doppler.cluster.machine import Cluster, Link, connected
from doppler.cluster.presets import A100, H100, H200, P100, PCIE3, V100, without_tf32
from doppler.support.errors import InputError
from doppler.support.options import Amount, Devices, Name, Positive, checked

# Guesses, to begin with: stage=calibrate measures them. One core with vector units, ordinary
# memory, and what Python takes to start an op.
CORE = Device(
    name="cpu",
    flop_per_s={"f16": 2e10, "f32": 4e10, "f64": 2e10},
    memory_bytes_per_s=5e9,
    launch_overhead_s=20e-6,
    memory_bytes=4e9,
)
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
) -> Cluster:
    """Describe this machine, divided equally among its devices; speeds are guesses.

    Args:
        name: of the cluster.
        device_type: ``cpu``: devices are cores. ``cuda``: they are GPUs with the speed of the
            preset that their name fits, else of an A100; with more devices than GPUs, several share
            one.
        num_devices: cores or GPUs; at least one.
        memory_bytes: of all devices, or of each, instead of an equal share.
        host_bytes_per_s: between a device and the memory of the host; by default as between two
            devices.
        host_latency_s: likewise.

    Raises:
        InputError: fewer than one device, another device type, or no GPU with ``cuda``.
    """
    if device_type == "cuda":
        device, link = _gpu(name, num_devices)
    else:
        share_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / num_devices
        device, link = replace(CORE, memory_bytes=share_bytes), lambda s, d: THREAD_TO_THREAD
    devices = [replace(device, name=f"{device_type}:{d}") for d in range(num_devices)]
    devices = with_memory(name, devices, memory_bytes)
    way = THREAD_TO_THREAD if device_type == "cpu" else PCIE3
    return replace(
        connected(name=name, devices=devices, link=link),
        host_bytes_per_s=way.bytes_per_s if host_bytes_per_s is None else host_bytes_per_s,
        host_latency_s=way.latency_s if host_latency_s is None else host_latency_s,
        cores=device_type == "cpu",
    )


def _gpu(name: str, num_devices: int) -> tuple[Device, Callable[[int, int], Link]]:
    """A device on the GPUs of this machine, with its share of the smallest one's memory; links."""
    import torch  # which nothing else in this layer needs

    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        raise InputError(f"cluster {name!r}: there is no GPU")
    properties = [torch.cuda.get_device_properties(i) for i in range(num_gpus)]
    known = (one for one in (P100, V100, H100, H200) if one.name in properties[0].name.lower())
    memory_bytes = min(one.total_memory for one in properties) / -(-num_devices // num_gpus)
    device = replace(next(known, A100), memory_bytes=memory_bytes)
    if torch.get_float32_matmul_precision() == "highest":
        device = without_tf32(device)
    # A copy within a GPU reads its memory and writes to it.
    within = Link(bytes_per_s=device.memory_bytes_per_s / 2, latency_s=device.launch_overhead_s)
    return device, lambda s, d: within if s % num_gpus == d % num_gpus else PCIE3
