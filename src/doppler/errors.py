"""The one exception that means "the user's input is at fault", and checks that raise it."""

import math


class InputError(ValueError):
    """Bad input: its message is one line that names what is wrong and where.

    The command line prints the message and exits with code 1. Any other exception is a defect of
    ours and keeps its traceback.
    """

    def __str__(self) -> str:
        """The line: names from files may hold line breaks, and what terminals obey."""
        text = super().__str__()
        return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


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
