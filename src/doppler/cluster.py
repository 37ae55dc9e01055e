"""Where a graph runs: devices, the links between them, and presets of known machines.

Shape suffix: D devices.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from doppler.errors import InputError
from doppler.files.values import fault, unknown_key
from doppler.options import Amount, Devices, Name, checked, one_of

# Of every device, or of each.
Memory = Amount | Sequence[Amount]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How much of its peaks a device reaches, by the size of a kernel.

    compute, memory: shares of the peaks that large kernels reach. half_flops, half_bytes: of a
    kernel that reaches half of that: so long a device takes to fill and to drain.
    """

    compute: float
    memory: float
    half_flops: float
    half_bytes: float

    def __post_init__(self) -> None:
        for one in fields(self):
            value, is_share = getattr(self, one.name), one.name in ("compute", "memory")
            if not (_is_number(value) and value >= 0 and (not is_share or 0 < value <= 1)):
                expected = "above 0 and at most 1" if is_share else "0 or more"
                raise InputError(f"efficiency.{one.name}: must be {expected}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device.

    flop_per_s: peak floating-point operations per second, by dtype (f16, f32, f64; c64 counts real
    operations and runs at the f32 rate unless given).
    memory_bytes_per_s: bandwidth of its own memory. launch_overhead_s: fixed seconds per op.
    memory_bytes: capacity. unsupported_kinds: op kinds that it cannot run. efficiency: what kernels
    reach of the peaks; None: all.
    """

    name: str
    flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    launch_overhead_s: float
    memory_bytes: float
    unsupported_kinds: Sequence[str] = ()
    efficiency: Efficiency | None = None

    @property
    def kind(self) -> str:
        """What it is one of: its name up to the last colon, as ``p100`` of ``p100:3``."""
        return self.name.rpartition(":")[0] or self.name

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        if not isinstance(self.flop_per_s, Mapping) or not self.flop_per_s:
            raise InputError(f"{where}: flop_per_s names no dtype")
        if isinstance(self.unsupported_kinds, str):
            raise InputError(f"{where}: unsupported_kinds must be a list of kinds")
        rates = {f"flop_per_s[{dtype}]": rate for dtype, rate in self.flop_per_s.items()}
        rates["memory_bytes_per_s"] = self.memory_bytes_per_s
        for label, rate in rates.items():
            if not (_is_number(rate) and rate > 0):
                raise InputError(f"{where}: {label} must be positive, got {rate!r}")
        for label in ("launch_overhead_s", "memory_bytes"):
            value = getattr(self, label)
            if not (_is_number(value) and value >= 0):
                raise InputError(f"{where}: {label} must not be negative, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction between two devices: seconds = latency_s + bytes / bytes_per_s."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Cluster:
    """Devices and the links between them.

    bytes_per_s, latency_s: [D, D], row the sender, column the receiver; the diagonal is unused.

    Raises:
        InputError: no device, a matrix of another shape, a link without bandwidth, a negative
            latency, a device that no link reaches; names the device or pair.
    """

    name: str
    devices: tuple[Device, ...]
    bytes_per_s: NDArray[np.float64] = field(repr=False)
    latency_s: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        num, where = len(self.devices), f"cluster {self.name!r}"
        if num < 1:
            raise InputError(f"{where}: needs at least one device, has {num}")
        for column in ("bytes_per_s", "latency_s"):
            matrix = np.array(getattr(self, column), dtype=np.float64)
            if matrix.shape != (num, num):
                raise InputError(f"{where}: {column} has shape {matrix.shape} for {num} devices")
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

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return len(self.devices)


def connected(*, name: str, devices: Sequence[Device], link: Callable[[int, int], Link]) -> Cluster:
    """A cluster whose link from device s to device d is ``link(s, d)``."""
    num = len(devices)
    bytes_per_s, latency_s = np.full((num, num), np.inf), np.zeros((num, num))
    for s in range(num):
        for d in range(num):
            if s != d:
                one = link(s, d)
                bytes_per_s[s, d], latency_s[s, d] = one.bytes_per_s, one.latency_s
    return Cluster(name=name, devices=tuple(devices), bytes_per_s=bytes_per_s, latency_s=latency_s)


def _with_memory(
    name: str, devices: Sequence[Device], memory_bytes: float | Sequence[float] | None
) -> list[Device]:
    """The devices with other memory: one number for all, or one for each; None: their own."""
    if memory_bytes is None:
        return list(devices)
    each = [memory_bytes] * len(devices) if _is_number(memory_bytes) else memory_bytes
    if not isinstance(each, Sequence) or len(each) != len(devices):
        raise InputError(
            f"cluster {name!r}: memory_bytes must be a number or {len(devices)}, one per device, "
            f"got {memory_bytes!r}"
        )
    return [replace(one, memory_bytes=room) for one, room in zip(devices, each, strict=True)]


def custom(
    *,
    name: Name,
    devices: Sequence[Mapping],
    bytes_per_s: float | Sequence[Sequence[float]],
    latency_s: float | Sequence[Sequence[float]],
    num_devices: Devices | None = None,
    memory_bytes: Memory | None = None,
) -> Cluster:
    """A cluster written out in a configuration file: one mapping of Device fields per device.

    bytes_per_s, latency_s: one number for all links, or a [D, D] matrix. num_devices: their number,
    for what interpolates it; so many of a kind where only one is described. memory_bytes: instead
    of what the devices say: one number, or one per device.
    """
    if num_devices is not None and len(devices) == 1:
        devices = [devices[0]] * num_devices
    num = len(devices)
    if num_devices not in (None, num):
        raise InputError(f"cluster {name!r}: num_devices is {num_devices}, but it has {num}")
    built = [_device(name, i, spec) for i, spec in enumerate(devices)]
    matrices = {}
    for column, value in (("bytes_per_s", bytes_per_s), ("latency_s", latency_s)):
        try:
            matrix = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"cluster {name!r}: {column} is neither a number nor a matrix: {value!r}"
            ) from None
        if np.isinf(matrix).any():
            raise InputError(f"cluster {name!r}: {column} must be finite")
        matrices[column] = np.full((num, num), matrix) if matrix.ndim == 0 else matrix
    built = _with_memory(name, built, memory_bytes)
    return Cluster(name=name, devices=tuple(built), **matrices)


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

# What f32 products do where TF32 is not allowed, as torch's own default has it (data sheets).
_WITHOUT_TF32 = {"a100": 19.5e12, "h100": 67e12, "h200": 67e12}

# Measured on an H100 (docs/results/gpu.md): square products of f32, TF32, f16 and f64, sums and
# products of elements, 64 to 8192 rows. What other devices reach is taken to be the same.
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


PRESETS: Mapping[str, _Preset] = {
    "p100x4": _Preset(4, lambda d: P100, lambda s, d: PCIE3),
    "v100x8": _Preset(8, lambda d: V100, _cube_mesh_link),
    "a100x8": _Preset(8, lambda d: A100, lambda s, d: NVSWITCH_A100),
    "h100x8": _Preset(8, lambda d: H100, lambda s, d: NVSWITCH_H100),
    # For graphs that come with their times; speeds and links are of use to others alone.
    "identical": _Preset(4, lambda d: P100, lambda s, d: PCIE3),
    # Two generations in one machine, over PCI Express.
    "mixed": _Preset(4, lambda d: V100 if d % 2 else P100, lambda s, d: PCIE3),
}


@checked
def preset(
    *,
    name: Annotated[str, one_of(PRESETS)],
    num_devices: Devices | None = None,
    memory_bytes: Memory | None = None,
    allow_tf32: bool = True,
    efficiency: Literal["peak", "measured"] = "peak",
) -> Cluster:
    """A known machine, with another number of devices or memory (one number, or each) if given.

    allow_tf32: products of f32 run in TF32 where tensor cores have it (A100, H100). efficiency:
    whether kernels reach the peaks of the data sheets, or what was measured (`Efficiency`).

    Raises:
        InputError: unknown name (the choices are listed) or fewer than one device.
    """
    known = PRESETS[name]
    num = known.num_devices if num_devices is None else num_devices
    devices = [replace(known.device(d), name=f"{known.device(d).name}:{d}") for d in range(num)]
    devices = _with_memory(name, devices, memory_bytes)
    if not allow_tf32:
        devices = [without_tf32(device) for device in devices]
    if efficiency == "measured":
        devices = [replace(device, efficiency=MEASURED) for device in devices]
    return connected(name=name, devices=devices, link=known.link)


def without_tf32(device: Device) -> Device:
    """The device as it multiplies f32 where TF32 is not allowed."""
    rate = _WITHOUT_TF32.get(device.name.partition(":")[0])
    rates = device.flop_per_s if rate is None else {**device.flop_per_s, "f32": rate}
    return replace(device, flop_per_s=rates)


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
    memory_bytes: Memory | None = None,
) -> Cluster:
    """The machine this runs on, divided equally among its devices; speeds are guesses.

    device_type: ``cpu``: its cores. ``cuda``: its GPUs, of the speed of those in the presets by
    their name, else of an A100's; several devices on one where they are more. memory_bytes: of
    all devices, or of each, instead of its share.

    Raises:
        InputError: fewer than one device, another device type, or no GPU where there should be one.
    """
    if device_type == "cuda":
        device, link = _gpu(name, num_devices)
    else:
        share_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / num_devices
        device, link = replace(CORE, memory_bytes=share_bytes), lambda s, d: THREAD_TO_THREAD
    devices = [replace(device, name=f"{device_type}:{d}") for d in range(num_devices)]
    devices = _with_memory(name, devices, memory_bytes)
    return connected(name=name, devices=devices, link=link)


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
    # What is copied within a GPU is read from its memory and written to it.
    within = Link(bytes_per_s=device.memory_bytes_per_s / 2, latency_s=device.launch_overhead_s)
    return device, lambda s, d: within if s % num_gpus == d % num_gpus else PCIE3
