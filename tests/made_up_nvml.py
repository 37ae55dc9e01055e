"""NVML as several machines would answer it: what stands in for the module ``pynvml``.

Answers are made up after the manuals of NVML and of the machines, not recorded on them. One GPU;
four with NVLinks in pairs, behind two PCI Express switches; eight behind NVSwitches; four on PCI
Express alone; one that is shared out (MIG) and tells little.
"""

# ruff: noqa: N802
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

SWITCH, GPU = 2, 0


class NVMLError(Exception):
    """As NVML's own: it has a text."""


@dataclass
class MadeUpNvml:
    """What is given is answered; what is None is not supported.

    levels: nvmlGpuTopologyLevel by pairs of GPUs. links: of each GPU, the number of the GPU on
    which each of its NVLinks ends, -1 a switch. version: of NVLink.
    bus: MHz and bits of its memory.
    """

    name: str
    num: int
    memory: tuple[int, int] | None = (80 * 10**9, 10**9)
    pcie: tuple[int, int] | None = (4, 16)
    levels: Mapping[tuple[int, int], int] = field(default_factory=dict)
    links: Sequence[Sequence[int]] = ()
    version: int = 4
    reasons: int = 1  # idle
    processes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    mig: bool = False
    bus: tuple[int, int] | None = None
    starts: bool = True
    is_open: bool = False
    energy_mj: int = 0
    NVML_CLOCK_SM: int = 1
    NVML_CLOCK_MEM: int = 2

    def nvmlInit(self) -> None:
        if not self.starts:
            raise NVMLError("Driver Not Loaded\nsee the manual")
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def _supported(self, value: Any) -> Any:
        assert self.is_open
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetCount(self) -> int:
        return self.num

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        return i

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.name

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        total, used = self._supported(self.memory)
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._supported(self.pcie)[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self._supported(self.pcie)[1]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list:
        return [SimpleNamespace(pid=pid) for pid in self.processes.get(handle, ())]

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return self._supported(None if self.mig else 1755)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        if clock == self.NVML_CLOCK_MEM:
            return self._supported(self.bus)[0]
        return self._supported(None if self.mig else 1980)

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return self._supported(self.bus)[1]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._supported(None if self.mig else 120_000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._supported(None if self.mig else 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self.energy_mj += 500
        return self._supported(None if self.mig else self.energy_mj)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return self._supported(self.levels.get((min(a, b), max(a, b))))

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        return int(link < len(self._supported(self.links or None)[handle]))

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return self.version

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return SWITCH if self.links[handle][link] < 0 else GPU

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(domain=0, bus=handle + 1, device=0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(domain=0, bus=self.links[handle][link] + 1, device=0)


def _levels(num: int, of: Any) -> dict[tuple[int, int], int]:
    return {(a, b): of(a, b) for a in range(num) for b in range(a + 1, num)}


def one_gpu(**changes: Any) -> MadeUpNvml:
    """An H200 by itself."""
    return MadeUpNvml(
        "NVIDIA H200",
        1,
        **{"memory": (150 * 10**9, 10**9), "pcie": (5, 16), "bus": (3201, 6144)} | changes,
    )


def pairs_by_nvlink(**changes: Any) -> MadeUpNvml:
    """Four A100 PCIe: 0 and 1, 2 and 3 are bridged and behind one switch each."""
    levels = _levels(4, lambda a, b: 10 if a // 2 == b // 2 else 50)
    links = [[g ^ 1] * 12 for g in range(4)]
    return MadeUpNvml(
        "NVIDIA A100 80GB PCIe", 4, **{"levels": levels, "links": links, "version": 3} | changes
    )


def eight_by_switches(**changes: Any) -> MadeUpNvml:
    """A DGX H100: 18 NVLinks of each GPU to switches."""
    levels = _levels(8, lambda a, b: 40 if a // 4 == b // 4 else 50)
    return MadeUpNvml(
        "NVIDIA H100 80GB HBM3",
        8,
        **{"levels": levels, "links": [[-1] * 18] * 8, "pcie": (5, 16)} | changes,
    )


def four_on_pcie(**changes: Any) -> MadeUpNvml:
    """Four L40 without NVLink: 0 and 1, 2 and 3 behind one switch each."""
    levels = _levels(4, lambda a, b: 20 if a // 2 == b // 2 else 40)
    return MadeUpNvml("NVIDIA L40", 4, **{"levels": levels, "bus": (9001, 384)} | changes)


def shared_out(**changes: Any) -> MadeUpNvml:
    """An instance of an A100."""
    return MadeUpNvml(
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        1,
        **{"mig": True, "pcie": None, "memory": None} | changes,
    )
