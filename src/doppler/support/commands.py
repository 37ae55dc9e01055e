"""How a command ends: its exit code, and one line about what went wrong."""

import atexit
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

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


def end_process(code: int) -> NoReturn:
    """End the process; after a signal only exit handlers are run.

    Shutting down an interpreter that has loaded torch would take a second.

    Args:
        code: exit code.
    """
    if code > _SIGNALLED:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
