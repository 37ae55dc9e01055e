"""What the driver reports about the GPUs of this machine (NVML): links, clocks, power, processes.

NVML lists all GPUs of the machine; those that a process sees are found by their names. A value that
a GPU does not report, such as one that is partitioned (MIG), is None.

Shape suffix: G GPUs.

Source: "NVML API Reference Guide", NVIDIA; rates of NVLink: data sheets of P100, V100, A100, H100
and B200; of PCI Express: 8, 16, 32 and 64 GT/s a lane from generation 3 on, encoded as 128b/130b.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

# Bytes per second of one NVLink and direction, by its version.
_NVLINK = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
_NVLINK_BYTES_PER_S = 25e9  # of an unknown version
# Bytes per second of one lane of PCI Express and direction, by its generation.
_PCIE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Reasons that force clocks down: bits of nvmlClocksEventReason.
_THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
# nvmlGpuTopologyLevel: how far two GPUs are apart, as nvidia-smi abbreviates it.
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Two GPUs that are no further apart are behind one PCI Express switch, or a few in a row.
_ONE_SWITCH = ("same board", "PIX", "PXB")
_SWITCH_TYPE, _MOST_NVLINKS = 2, 36

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """The present state of one GPU, as its driver reports it.

    Attributes:
        number: in this process.
        name: of the product.
        memory_bytes: size of its memory.
        memory_bytes_per_s: bandwidth of its memory, from its largest clock and the width of its
            bus; two transfers a clock, as the CUDA samples (deviceQuery) count.
        used_bytes: memory in use, by all processes.
        pcie: largest generation and width of its PCI Express link.
        nvlink_bytes_per_s: of all its NVLinks to switches together, one direction.
        clock_hz: present clock of its processors.
        max_clock_hz: largest clock.
        power_w: present power.
        power_limit_w: largest power.
        energy_j: joules since its driver was loaded.
        throttles: reasons that slow its clocks down.
        processes: pids of other processes that compute on it.
        shared_out: whether it is partitioned into instances (MIG).
    """

    number: int
    name: str
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    used_bytes: float | None = None
    pcie: tuple[int, int] | None = None
    nvlink_bytes_per_s: float = 0.0
    clock_hz: float | None = None
    max_clock_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    throttles: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    shared_out: bool = False

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Bandwidth of its PCI Express link, one direction."""
        if self.pcie is None:
            return None
        generation, width = self.pcie
        return _PCIE.get(generation, _PCIE[max(_PCIE)]) * width


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The GPUs that this process sees, and the links between them.

    Attributes:
        gpus: in the order of the process.
        levels: [G][G] how far apart two GPUs are on PCI Express: PIX and PXB behind a switch, PHB
            behind one bridge of the host, NODE in one NUMA node, SYS across nodes; empty if
            unknown.
        nvlinks: [G][G] bytes per second of direct NVLinks from one to the other.
    """

    gpus: tuple[GpuFacts, ...]
    levels: tuple[tuple[str, ...], ...]
    nvlinks: tuple[tuple[float, ...], ...]

    def switch_groups(self) -> list[tuple[int, ...]]:
        """Groups of two or more GPUs behind one PCI Express switch."""
        num, left, found = len(self.gpus), set(range(len(self.gpus))), []
        while left:
            first = min(left)
            group = [g for g in range(num) if g == first or self.levels[first][g] in _ONE_SWITCH]
            left -= set(group)
            if len(group) > 1:
                found.append(tuple(group))
        return found

    def lines(self) -> list[str]:
        """Describe the facts: a line for each GPU and for each pair."""
        found = []
        for gpu in self.gpus:
            told = [f"GPU {gpu.number}: {gpu.name}"]
            if gpu.memory_bytes is not None:
                used = "" if gpu.used_bytes is None else f", {gpu.used_bytes / 1e9:.3g} in use"
                told.append(f"{gpu.memory_bytes / 1e9:.4g} GB{used}")
            if gpu.memory_bytes_per_s is not None:
                told.append(f"its memory {gpu.memory_bytes_per_s / 1e9:,.0f} GB/s")
            if gpu.pcie is not None and gpu.pcie_bytes_per_s is not None:
                rate = gpu.pcie_bytes_per_s / 1e9
                told.append(f"PCI Express {gpu.pcie[0]} x{gpu.pcie[1]} ({rate:.3g} GB/s)")
            if gpu.nvlink_bytes_per_s:
                told.append(f"NVLink to switches {gpu.nvlink_bytes_per_s / 1e9:.4g} GB/s")
            if gpu.clock_hz is not None and gpu.max_clock_hz is not None:
                told.append(f"{gpu.clock_hz / 1e6:.0f} of {gpu.max_clock_hz / 1e6:.0f} MHz")
            if gpu.power_w is not None:
                most = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
                told.append(f"{gpu.power_w:.0f}{most} W")
            if gpu.shared_out:
                told.append("shared out (MIG)")
            found.append(", ".join(told))
        for a in range(len(self.gpus)):
            for b in range(a + 1, len(self.gpus)):
                ways = [f"NVLink {self.nvlinks[a][b] / 1e9:.4g} GB/s"] if self.nvlinks[a][b] else []
                ways += [self.levels[a][b]] if self.levels[a][b] else []
                if ways:
                    found.append(f"GPU {a} and {b}: {', '.join(ways)}")
        return found

    def warnings(self) -> list[str]:
        """Reasons why a measurement now may differ from a later one, a line each."""
        found = []
        for gpu in self.gpus:
            if gpu.processes:
                who = ", ".join(map(str, gpu.processes[:5]))
                found.append(
                    f"GPU {gpu.number}: another process computes on it ({who}): measurements "
                    "include its load"
                )
            if gpu.throttles:
                found.append(
                    f"GPU {gpu.number}: clocks are throttled by {', '.join(gpu.throttles)}: it is "
                    "slower than at other times"
                )
        return found


def read_machine(nvml: Any = None) -> MachineFacts | None:
    """Read the state of the GPUs that this process sees; None, and a log line, if NVML fails.

    Args:
        nvml: the module ``pynvml`` or a replacement; None: imported.
    """
    log = logging.getLogger(__name__)
    try:
        if nvml is None:
            import pynvml as nvml  # pyright: ignore[reportMissingImports]
        nvml.nvmlInit()
    except ModuleNotFoundError:
        log.warning("nvidia-ml-py is not installed: the state of the GPUs is unknown")
        return None
    except Exception as error:  # NVML's own, which has no name without its package
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("NVML says %s: the state of the GPUs is unknown", reason)
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByUUID(name) for name in _seen(nvml)]
        gpus = tuple(_gpu(nvml, number, handle) for number, handle in enumerate(handles))
        return MachineFacts(
            gpus=gpus,
            levels=tuple(tuple(_level(nvml, a, b) for b in handles) for a in handles),
            nvlinks=_nvlinks(nvml, handles),
        )
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("NVML says %s: the state of the GPUs is unknown", reason)
        return None
    finally:
        nvml.nvmlShutdown()


def _seen(nvml: Any) -> list[str]:
    """Names of the GPUs that this process sees, in its order."""
    import torch

    if torch.cuda.is_available():
        of = torch.cuda.get_device_properties
        names = [str(of(gpu).uuid) for gpu in range(torch.cuda.device_count())]
        return [name if name.startswith(("GPU-", "MIG-")) else f"GPU-{name}" for name in names]
    numbers = range(nvml.nvmlDeviceGetCount())
    return [_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i))) for i in numbers]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _told(ask: Callable[..., Value], *arguments: Any) -> Value | None:
    """What NVML answers; None if a GPU does not report the value."""
    try:
        return ask(*arguments)
    except Exception:
        return None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _gpu(nvml: Any, number: int, handle: Any) -> GpuFacts:
    memory = _told(nvml.nvmlDeviceGetMemoryInfo, handle)
    generation = _told(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _told(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    reasons = _told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    running = _told(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    clock = nvml.NVML_CLOCK_SM
    mode = _told(nvml.nvmlDeviceGetMigMode, handle)
    return GpuFacts(
        number=number,
        name=_text(_told(nvml.nvmlDeviceGetName, handle) or "unknown"),
        memory_bytes=None if memory is None else float(memory.total),
        memory_bytes_per_s=_memory_bytes_per_s(nvml, handle),
        used_bytes=None if memory is None else float(memory.used),
        pcie=None if generation is None or width is None else (int(generation), int(width)),
        nvlink_bytes_per_s=_to_switches(nvml, handle),
        clock_hz=_scaled(_told(nvml.nvmlDeviceGetClockInfo, handle, clock), 1e6),
        max_clock_hz=_scaled(_told(nvml.nvmlDeviceGetMaxClockInfo, handle, clock), 1e6),
        power_w=_scaled(_told(nvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
        power_limit_w=_scaled(_told(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
        energy_j=_scaled(_told(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
        throttles=tuple(text for bit, text in _THROTTLES.items() if reasons & bit),
        processes=tuple(one.pid for one in running if one.pid != os.getpid()),
        shared_out=bool(mode and mode[0]),
    )


def _memory_bytes_per_s(nvml: Any, handle: Any) -> float | None:
    bits = _told(nvml.nvmlDeviceGetMemoryBusWidth, handle)
    megahertz = _told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
    return 2 * megahertz * 1e6 * bits / 8 if bits and megahertz else None


def _level(nvml: Any, a: Any, b: Any) -> str:
    level = None if a is b else _told(nvml.nvmlDeviceGetTopologyCommonAncestor, a, b)
    return _LEVELS.get(level, "") if level is not None else ""


def _active_links(nvml: Any, handle: Any) -> list[tuple[int, float]]:
    """The active NVLinks, with bytes per second of each."""
    found = []
    for link in range(_MOST_NVLINKS):
        if _told(nvml.nvmlDeviceGetNvLinkState, handle, link):
            version = _told(nvml.nvmlDeviceGetNvLinkVersion, handle, link)
            found.append((link, _NVLINK.get(version or 0, _NVLINK_BYTES_PER_S)))
    return found


def _to_switches(nvml: Any, handle: Any) -> float:
    kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType
    links = _active_links(nvml, handle)
    return sum(rate for link, rate in links if _told(kind, handle, link) == _SWITCH_TYPE)


def _nvlinks(nvml: Any, handles: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    """Direct NVLinks between GPUs, found by the bus at their other end."""
    buses = [_bus(_told(nvml.nvmlDeviceGetPciInfo, handle)) for handle in handles]
    rates = [[0.0] * len(handles) for _ in handles]
    for a, handle in enumerate(handles):
        for link, rate in _active_links(nvml, handle):
            end = _bus(_told(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            if end is not None and end in buses:
                rates[a][buses.index(end)] += rate
    return tuple(map(tuple, rates))


def _bus(info: Any) -> tuple[int, int, int] | None:
    return None if info is None else (int(info.domain), int(info.bus), int(info.device))
