"""A device: its peak rates, the share of them that kernels reach, and its memory."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real

from doppler.support.errors import InputError
from doppler.support.options import Amount

_LARGEST = int(sys.float_info.max)
# One number for all devices, or one for each.
MemoryBytes = Amount | Sequence[Amount]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of its peak rates that a device reaches, depending on the size of a kernel.

    Attributes:
        compute: share of the peak floating-point rate that large kernels reach.
        memory: share of the peak memory bandwidth that large kernels reach.
        half_flops: floating-point operations of a kernel that reaches half of ``compute``.
        half_bytes: bytes of a kernel that reaches half of ``memory``.
    """

    compute: float
    memory: float
    half_flops: float
    half_bytes: float

    def __post_init__(self) -> None:
        for one in fields(self):
            value, is_share = getattr(self, one.name), one.name in ("compute", "memory")
            if not (is_number(value) and value >= 0 and (not is_share or 0 < value <= 1)):
                expected = "above 0 and at most 1" if is_share else "0 or more"
                raise InputError(f"efficiency.{one.name}: must be {expected}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device.

    Attributes:
        name: unique in its cluster, such as ``p100:3``.
        flop_per_s: peak floating-point operations per second, by dtype (f16, f32, f64). c64 counts
            real operations and runs at the f32 rate unless given.
        memory_bytes_per_s: bandwidth of its memory.
        launch_overhead_s: fixed seconds per op.
        memory_bytes: capacity.
        unsupported_kinds: op kinds that it cannot run.
        efficiency: shares of the peaks that kernels reach; None: all.
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
        """The name up to the last colon: ``p100`` for ``p100:3``."""
        return self.name.rpartition(":")[0] or self.name

    def __post_init__(self) -> None:
        where = f"device {self.name!r:.60}"
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"{where}: name must be a text")
        if not isinstance(self.flop_per_s, Mapping) or not self.flop_per_s:
            raise InputError(f"{where}: flop_per_s names no dtype")
        kinds = self.unsupported_kinds
        if isinstance(kinds, str) or not isinstance(kinds, Sequence):
            raise InputError(f"{where}: unsupported_kinds must be a list of kinds")
        if not all(isinstance(kind, str) for kind in kinds):
            raise InputError(f"{where}: unsupported_kinds must be texts, got {kinds!r:.60}")
        rates = {f"flop_per_s[{dtype}]": rate for dtype, rate in self.flop_per_s.items()}
        rates["memory_bytes_per_s"] = self.memory_bytes_per_s
        for label, rate in rates.items():
            if not (is_number(rate) and rate > 0):
                raise InputError(f"{where}: {label} must be positive, got {rate!r}")
        for label in ("launch_overhead_s", "memory_bytes"):
            value = getattr(self, label)
            if not (is_number(value) and value >= 0):
                raise InputError(f"{where}: {label} must not be negative, got {value!r}")


def is_number(value: object) -> bool:
    """Whether a value is a number; booleans and whole numbers too large for a float are not.

    Args:
        value: to test.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return not isinstance(value, int) or -_LARGEST <= value <= _LARGEST


def with_memory(
    name: str, devices: Sequence[Device], memory_bytes: float | Sequence[float] | None
) -> list[Device]:
    """Return the devices with other memory sizes.

    Args:
        name: of the cluster, for messages.
        devices: to change.
        memory_bytes: one number for all, or one for each; None: unchanged.

    Raises:
        InputError: not one number for each device.
    """
    if memory_bytes is None:
        return list(devices)
    each = [memory_bytes] * len(devices) if is_number(memory_bytes) else memory_bytes
    if not isinstance(each, Sequence) or len(each) != len(devices):
        raise InputError(
            f"cluster {name!r}: memory_bytes must be a number or {len(devices)}, one per device, "
            f"got {memory_bytes!r}"
        )
    return [replace(one, memory_bytes=room) for one, room in zip(devices, each, strict=True)]
