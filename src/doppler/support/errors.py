"""The one exception that means "the user's input is at fault"."""

_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "start new thread")


class InputError(ValueError):
    """Bad input: its message is one line that names what is wrong and where.

    The command line prints the message and exits with code 1. Any other exception is a defect of
    ours and keeps its traceback.
    """

    def __str__(self) -> str:
        """The line: names from files may hold line breaks, and what terminals obey."""
        return printable(super().__str__())


def printable(text: str) -> str:
    """The text on one line; line breaks, and what else terminals obey, are written out."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """As `printable`, of a text whose line breaks are its own."""
    return "\n".join(map(printable, text.split("\n")))


def fault_of_machine(error: BaseException | None) -> str | None:
    """What the machine did not do, in one line: a full disk, no memory; None for other errors."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    text = str(error).partition("\n")[0]
    if isinstance(error, UnicodeEncodeError):
        return f"{str(error.object)[:80]!a}: the locale has no such character: set LC_ALL=C.UTF-8"
    if isinstance(error, MemoryError):
        return f"not enough memory ({text})" if text else "not enough memory"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return f"not enough memory ({text})"  # torch says so, and Python of threads
    return None
