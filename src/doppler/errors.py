"""The one exception that means "the user's input is at fault", and checks that raise it."""

import math

_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "start new thread")


class InputError(ValueError):
    """Bad input: its message is one line that names what is wrong and where.

    The command line prints the message and exits with code 1. Any other exception is a defect of
    ours and keeps its traceback.
    """


def check_at_least(key: str, value: float, least: float) -> None:
    """Refuse a number that is too small or infinite, or what is no number.

    Raises:
        InputError: names the key.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and least <= value < math.inf):
        raise InputError(f"{key}: must be a number of at least {least:g}, got {value!r}")


def check_count(key: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or one that is too small.

    Raises:
        InputError: names the key.
    """
    if type(value) is not int or value < least:
        raise InputError(f"{key}: must be a whole number of at least {least}, got {value!r}")


def fault_of_machine(error: BaseException | None) -> str | None:
    """What the machine did not do, in one line: a full disk, no memory; None for other errors."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    text = str(error).partition("\n")[0]
    if isinstance(error, MemoryError):
        return f"not enough memory ({text})" if text else "not enough memory"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return f"not enough memory ({text})"  # torch says so, and Python of threads
    return None
