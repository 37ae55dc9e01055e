"""One lock per device of this machine: runs of other processes never disturb a measurement.

A process that ends, however it ends, gives its locks back.
"""

import logging
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from doppler.support.files import lock_file

# Runs in a queue wait for those before them, which may measure for hours.
_LIMIT_S = 24 * 3600.0
_guard = threading.Lock()
# Per device that this process holds: the open file and how many sessions share it.
_held: dict[str, tuple[int, int]] = {}


def acquire(devices: Sequence[str]) -> None:
    """Wait until the devices are this process's own, and keep them.

    All processes take them in the order in which they are named: nobody waits in a circle.
    Sessions of one process share devices: they do not measure at one time.

    Raises:
        InputError: a lock is no file, or another process keeps it for a day.
    """
    taken = []
    try:
        for device in devices:
            with _guard:
                file, count = _held.get(device) or (_locked(device), 0)
                _held[device] = file, count + 1
            taken.append(device)
    except BaseException:
        release(taken)
        raise


def release(devices: Sequence[str]) -> None:
    """Give back what `acquire` took."""
    with _guard:
        for device in devices:
            file, count = _held.pop(device)
            if count > 1:
                _held[device] = file, count - 1
            else:
                os.close(file)


def lock_path(device: str) -> Path:
    """The file whose lock stands for a device of this machine."""
    return Path(tempfile.gettempdir()) / f"doppler-{platform.node()}-{device}.lock"


def _locked(device: str) -> int:
    warn = logging.getLogger(__name__).warning
    return lock_file(lock_path(device), f"device {device}", limit_s=_LIMIT_S, say=warn)
