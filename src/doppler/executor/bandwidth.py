"""How fast devices copy to each other when nothing else runs: the best that links can do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor.devices import Devices
from doppler.executor.recording import Action

# Too large for caches, and large enough that the start of a copy does not matter: on GPUs the host
# takes some 20 us for it, and 64 MiB are copied in 30 us.
COPY_BYTES, GPU_COPY_BYTES = 1 << 26, 1 << 30
_COPIES = 5


def bandwidths(devices: Devices, num_bytes: int | None = None) -> NDArray[np.float64]:
    """Measure bytes per second from each device to each other [D, D]; NaN on the diagonal.

    It is the fastest of a few copies of one block, made the way the executor makes transfers, one
    pair after another, on one core. How fast a link is while all others work is measured by
    calibration.

    Args:
        devices: to copy between.
        num_bytes: size of the block; by default large enough for the kind of devices.
    """
    num = devices.num_devices
    if num_bytes is None:
        num_bytes = block_bytes(devices.place(0))
    rate_DD = np.full((num, num), np.nan)
    for src in range(num):
        for dst in range(num):
            if src != dst:
                here, there = (
                    torch.zeros(num_bytes, dtype=torch.uint8, device=devices.place(d))
                    for d in (src, dst)
                )
                copy = devices.copying(src, dst, here, there)
                with _one_core():
                    rate_DD[src, dst] = num_bytes / min(_seconds(copy) for _ in range(_COPIES))
    return rate_DD


def block_bytes(place: str) -> int:
    """Return the size of the block that devices of this kind copy.

    Args:
        place: of a device, in torch's notation.
    """
    if not place.startswith("cuda"):
        return COPY_BYTES
    room = torch.cuda.get_device_properties(place).total_memory
    return min(GPU_COPY_BYTES, room // 64)  # the run has its own data there


@contextmanager
def _one_core() -> Iterator[None]:
    """Limit torch to one core, as executor workers do; it would copy a large block with all."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(copy: Action) -> float:
    begin_s = time.perf_counter()
    copy()
    return time.perf_counter() - begin_s
