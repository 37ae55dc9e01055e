"""Locks on files, which keep other processes out; safe in folders where anybody may write."""

import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from doppler.support.errors import InputError

_TRY_AGAIN_S = 0.05


def lock_file(
    path: Path, what: str, *, limit_s: float = 0.0, say: Callable[[str], object] | None = None
) -> int:
    """Take the lock of a file, which is created if it does not exist.

    Args:
        path: of the file. Its content is never touched.
        what: the file represents, for messages.
        limit_s: seconds to wait for another process that holds the lock.
        say: called once with one line if the lock has to be waited for.

    Returns:
        A file descriptor; closing it releases the lock.

    Raises:
        InputError: names the file; it is not a regular file, cannot be opened, or another process
            still holds the lock when the time is over.
    """
    file = _opened(path)
    try:
        until_s = time.monotonic() + limit_s
        waits = False
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            if time.monotonic() >= until_s:
                waited = f", for more than {limit_s:g} s" if limit_s else ""
                raise InputError(f"{what}: another process runs here{waited}{_holder(file)}")
            if say is not None and not waits:
                say(f"{what}: waiting for another run to finish{_holder(file)}")
            waits = True
            time.sleep(_TRY_AGAIN_S)
    except BaseException:
        os.close(file)
        raise


def _opened(path: Path) -> int:
    """Open the file, but neither what a link points to nor a pipe, which could block."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            file = os.open(path, flags | os.O_CREAT, 0o666)
        except PermissionError:  # another user's file in a folder such as /tmp
            file = os.open(path, flags)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InputError(f"{path}: not a regular file")
    return file


def _holder(file: int) -> str:
    """Return `` (process 12)`` if the kernel tells which process holds the lock."""
    status = os.fstat(file)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 12 fd:00:1234 0 EOF
            if words[1] == "FLOCK" and words[5] == device:
                return f" (process {words[4]})"
    return ""
