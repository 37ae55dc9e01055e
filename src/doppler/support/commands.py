"""How a command ends: its exit code, and one line about what went wrong."""

import atexit
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from doppler.support.child_processes import without_working_directory
from doppler.support.errors import InputError, fault_of_machine
from doppler.support.stopping import Stopped, stoppable

_SIGNALLED = 128  # larger exit codes are this plus the signal that ended the process


def carried_out(command: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    """Run a command; bad input and signals end it with one line.

    Args:
        command: gets the arguments and returns an exit code.
        arguments: of the command line.

    Returns:
        The exit code: that of the command; 1 for bad input; 128 plus the number of the signal that
        ended it.
    """
    for stream in (sys.stdout, sys.stderr):  # names may have characters that the locale lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with without_working_directory(), stoppable():
            _check_environment()
            return command(list(arguments))
    except Stopped as stopped:
        if stopped.line:
            print(stopped.line, file=sys.stderr)
        return stopped.exit_code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if (line := fault_of_machine(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 1


def _check_environment() -> None:
    """Refuse an environment in which nothing can run.

    Raises:
        InputError: the working directory is deleted, about which other errors would not name a
            file; or numba may not compile.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("the working directory is deleted: change to another") from None
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise InputError("NUMBA_DISABLE_JIT: unset it, doppler runs compiled code only")


class _Output(io.TextIOWrapper):
    """A standard stream; the command is stopped if nobody reads it any more (``| head``)."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise _UNREAD from None

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise _UNREAD from None


# Other programs end by this signal without a word.
_UNREAD = Stopped(signal.SIGPIPE, "")


def _noticed(stream: Any) -> Any:
    """Return a stream that writes where this one does, and notices if nobody reads."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    ways = {key: getattr(stream, key) for key in ("encoding", "errors", "line_buffering")}
    return _Output(stream.buffer, **ways, write_through=stream.write_through)


def end_process(carry_out: Callable[[], int]) -> NoReturn:
    """Run a command line and end the process; after a signal only exit handlers are run.

    Shutting down an interpreter that has loaded torch would take a second.

    Args:
        carry_out: runs the command line and returns the exit code.
    """
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_noticed, kept)
    try:
        code = carry_out()
        _flush()
    except Stopped as stopped:
        code = stopped.exit_code
    except OSError as error:  # such as a full disk that standard output goes to
        if (line := fault_of_machine(error)) is None:
            raise
        print(f"error: standard output: {line}", file=sys.stderr)
        code = 1
    finally:
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, _Output):
                with suppress(OSError, Stopped):
                    output.detach()  # or it would close the stream that it writes to
        sys.stdout, sys.stderr = kept
    if code > _SIGNALLED:
        atexit._run_exitfuncs()
        with suppress(OSError, Stopped):
            _flush()
        os._exit(code)
    sys.exit(code)


def _flush() -> None:
    if sys.stdout is not None:  # as it is if the shell closed it (>&-)
        sys.stdout.flush()
