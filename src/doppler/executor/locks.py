"""One lock per device of this machine: runs of other processes never disturb a measurement.

A process that ends, however it ends, gives its locks back.
"""

import fcntl
import logging
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

_guard = threading.Lock()
# Per device that this process holds: the open file and how many sessions share it.
_held: dict[str, tuple[int, int]] = {}


def acquire(devices: Sequence[str]) -> None:
    """Wait until the devices are this process's own, and keep them.

    All processes take them in the order in which they are named: nobody waits in a circle.
    Sessions of one process share devices: they do not measure at one time.
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
    path = lock_path(device)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
    except PermissionError:  # made by another user, in a folder where only its owner may make it
        file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.getLogger(__name__).warning("device %s: waiting for another run to finish", device)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except BaseException:
            os.close(file)
            raise
    return file
