"""The machine that a graph runs on: devices, links, hosts, and presets of known machines."""

from doppler.cluster.device import Device, Efficiency, MemoryBytes
from doppler.cluster.machine import MAX_NICS, Cluster, Link, connected
from doppler.cluster.presets import (
    A100,
    H100,
    H200,
    INFINIBAND,
    MEASURED,
    NVLINK2,
    P100,
    PCIE3,
    PRESETS,
    V100,
    preset,
)
from doppler.cluster.sharing import SharedResource
from doppler.cluster.this_machine import host
from doppler.cluster.written_out import custom

__all__ = [
    "A100",
    "H100",
    "H200",
    "INFINIBAND",
    "MAX_NICS",
    "MEASURED",
    "NVLINK2",
    "P100",
    "PCIE3",
    "PRESETS",
    "V100",
    "Cluster",
    "Device",
    "Efficiency",
    "Link",
    "MemoryBytes",
    "SharedResource",
    "connected",
    "custom",
    "host",
    "preset",
]
