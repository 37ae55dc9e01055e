"""One lock per device of this machine, so that processes do not disturb each other's measurements.

A process releases its locks when it ends, however it ends.
"""

import logging
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from doppler.support.files import lock_file

# Queued runs wait for those before them, which may measure for hours.
_LIMIT_S = 24 * 3600.0
_guard = threading.Lock()
# For each device that this process holds: the open file and the number of sessions that share it.
_held: dict[str, tuple[int, int]] = {}


def acquire(devices: Sequence[str]) -> None:
    """Wait until the devices belong to this process, and keep them.

    All processes take them in the order of their names, so nobody waits in a circle. Sessions of
    one process share devices, because they do not measure at the same time.

    Args:
        devices: names of locks.

    Raises:
        InputError: a lock is not a file, or another process keeps it for a day.
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
    """Release what `acquire` took.

    Args:
        devices: names of locks.
    """
    with _guard:
        for device in devices:
            file, count = _held.pop(device)
            if count > 1:
                _held[device] = file, count - 1
            else:
                os.close(file)


def lock_path(device: str) -> Path:
    """Return the file whose lock stands for a device of this machine.

    Args:
        device: name of the lock.
    """
    return Path(tempfile.gettempdir()) / f"doppler-{platform.node()}-{device}.lock"


def _locked(device: str) -> int:
    warn = logging.getLogger(__name__).warning
    return lock_file(lock_path(device), f"device {device}", limit_s=_LIMIT_S, say=warn)
