"""Reads files: only regular ones, of limited size, as UTF-8 or JSON.

Files contain data only. Readers check types and ranges of values (support/files/values.py).
"""

import errno
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any, TextIO

from doppler.support.errors import InputError

# Largest size of a file in megabytes; this environment variable sets another one.
LIMIT_VARIABLE = "DOPPLER_MAX_FILE_MB"
_MAX_MB = 256.0
_MEGABYTE = 2**20
# More digits than any sensible number has. Readers of values report numbers of more than 64 bits.
_MAX_DIGITS = 4000
# Unpaired surrogates, which cannot be written as text.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def check_size(path: str | Path, *, max_mb: float = _MAX_MB) -> None:
    """Refuse a path that is not a regular file, or a file larger than the limit.

    Args:
        path: of the file.
        max_mb: megabytes, unless the environment sets another limit.

    Raises:
        InputError: names the file.
    """
    try:
        _check(path, os.stat(path), _limit_mb(max_mb))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def read_bytes(path: str | Path, *, max_mb: float = _MAX_MB) -> bytes:
    """Return the content of a file.

    Args:
        path: of the file.
        max_mb: megabytes, unless the environment sets another limit.

    Raises:
        InputError: names the file; it cannot be read, is not a regular file, or is too large.
    """
    limit_mb = _limit_mb(max_mb)
    try:
        _check(path, os.stat(path), limit_mb)  # before opening, which may affect a device
        # Does not wait for a pipe that has replaced the file meanwhile.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            _check(path, os.fstat(file.fileno()), limit_mb)
            content = file.read(int(limit_mb * _MEGABYTE) + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(path, error) from None
    if len(content) > limit_mb * _MEGABYTE:  # the file grows, or reports no size
        raise _too_large(path, len(content), limit_mb)
    return content


def read_text(path: str | Path, *, max_mb: float = _MAX_MB) -> str:
    """Return the content of a text file, with lines that end in a line feed.

    Args:
        path: of the file.
        max_mb: megabytes, unless the environment sets another limit.

    Raises:
        InputError: as `read_bytes` does, or the file is not UTF-8.
    """
    try:
        text = read_bytes(path, max_mb=max_mb).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_damaged_text(path: str | Path) -> str:
    """Return the content of a text file that a kill may have cut off within a character.

    Args:
        path: of the file.

    Raises:
        InputError: as `read_bytes` does.
    """
    return read_bytes(path).decode("utf-8", errors="replace")


def open_to_append(path: str | Path, *, newline: str | None = None) -> TextIO:
    """Open a text file to append to it; it is created if it does not exist.

    Args:
        path: of the file.
        newline: see `open`.

    Raises:
        InputError: it is a link or not a regular file, such as a pipe, which could block.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise InputError(f"{path}: not a regular file") from None
        raise
    file = open(descriptor, "a", encoding="utf-8", newline=newline, buffering=1)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise InputError(f"{path}: not a regular file")
    return file


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Args:
        path: of the file.

    Raises:
        InputError: as `read_text` and `parse_json` do.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: str | Path) -> Any:
    """Parse a JSON text in which every key occurs once; callers check that numbers are finite.

    Args:
        text: to parse.
        path: for messages.

    Raises:
        InputError: names the file, and the line or the key at fault.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_int=_integer)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{path}: brackets are nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError(f"{path}: half a character (\\ud800 to \\udfff) in a text") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in made if keys.count(key) > 1)
        raise InputError(f"the key {twice!r} appears twice in one object")
    return made


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise InputError(f"the integer {digits[:8]}... of {len(digits)} digits is too large")
    return int(digits)


def _limit_mb(max_mb: float) -> float:
    text = os.environ.get(LIMIT_VARIABLE)
    if text is None:
        return max_mb
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise InputError(f"{LIMIT_VARIABLE}: must be a positive number, got {text!r}")
    return limit


def _check(path: str | Path, status: os.stat_result, limit_mb: float) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: Is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file")
    if status.st_size > limit_mb * _MEGABYTE:
        raise _too_large(path, status.st_size, limit_mb)


def _too_large(path: str | Path, size: int, limit_mb: float) -> InputError:
    return InputError(
        f"{path}: {size / _MEGABYTE:.3g} MB, more than {limit_mb:g} "
        f"({LIMIT_VARIABLE}=N in the environment allows N)"
    )


def _unreadable(path: str | Path, error: OSError | ValueError) -> InputError:
    """Make the error for a file that cannot be read; a ValueError means a path with a zero byte."""
    if isinstance(error, InputError):
        return error
    return InputError(f"{path}: {getattr(error, 'strerror', None) or error}")
