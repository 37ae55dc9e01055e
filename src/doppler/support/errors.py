"""The exception for bad input, and texts that are safe to print."""

_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "start new thread")


class InputError(ValueError):
    """Bad input. The message is one line that says what is wrong and where.

    The command line prints the message and exits with code 1. Any other exception is a defect of
    Doppler and keeps its traceback.
    """

    def __str__(self) -> str:
        """Return the message on one line, although names from files may have line breaks."""
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return a text on one line, with line breaks and control codes written out.

    Args:
        text: any text.
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """Return a text whose line breaks stay, with control codes written out.

    Args:
        text: any text.
    """
    return "\n".join(map(printable, text.split("\n")))


def unrounded(number: float) -> str:
    """Return a number as text that stands for exactly this number, such as a size that must do.

    Args:
        number: finite.
    """
    return str(int(number)) if number == int(number) else repr(float(number))


def fault_of_machine(error: BaseException | None) -> str | None:
    """Return one line about what the machine failed to do, such as a full disk or no memory.

    Args:
        error: any exception.

    Returns:
        The line; None for other errors.
    """
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    text = str(error).partition("\n")[0]
    if isinstance(error, UnicodeEncodeError):
        return f"{str(error.object)[:80]!a}: the locale has no such character: set LC_ALL=C.UTF-8"
    if isinstance(error, MemoryError):
        return f"not enough memory ({text})" if text else "not enough memory"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return f"not enough memory ({text})"  # from torch, or from Python if it starts a thread
    return None
