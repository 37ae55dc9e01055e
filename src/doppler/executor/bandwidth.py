"""How fast devices copy to each other, all else at rest: what links could do at best."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor.devices import Devices
from doppler.executor.recording import Action

# Too large for caches, and for what starting a copy takes to count.
COPY_BYTES = 1 << 26
_COPIES = 5


def bandwidths(devices: Devices, num_bytes: int = COPY_BYTES) -> NDArray[np.float64]:
    """Bytes per second from each device to each other [D, D], NaN from a device to itself.

    The fastest of a few copies of one block, by the way that the executor's transfers go, pair
    after pair, on one core. What a link does among the work of all others is for calibration to
    say.
    """
    num = devices.num_devices
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


@contextmanager
def _one_core() -> Iterator[None]:
    """As the executor's workers are: torch would copy a large block with all of them."""
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
