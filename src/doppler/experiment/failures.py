"""What failed in the runs of a sweep, wherever its launcher runs them.

The process of the command line makes a folder and names it in its environment, which every
process that a launcher starts inherits; a run that fails leaves its line there.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from doppler.errors import InputError, fault_of_machine

_FOLDER = "DOPPLER_FAILURES"


class RunError(Exception):
    """A run of a sweep failed, as its one line says; it has been told already."""


@contextmanager
def collected() -> Iterator[list[str]]:
    """The lines of the runs that failed; complete when the context ends."""
    lines: list[str] = []
    outer = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory(prefix="doppler-") as folder:
        os.environ[_FOLDER] = folder
        try:
            yield lines
        finally:
            os.environ.pop(_FOLDER)
            if outer is not None:
                os.environ[_FOLDER] = outer
            files = sorted(Path(folder).iterdir(), key=lambda path: int(path.name))
            lines += [path.read_text(encoding="utf-8") for path in files]


def keep(line: str, number: int) -> bool:
    """Leave the line of a sweep's run; False where its folder is on another machine."""
    try:
        Path(os.environ[_FOLDER], str(number)).write_text(line, encoding="utf-8")
    except (KeyError, OSError):
        return False
    return True


def one_line(error: BaseException) -> str:
    """What went wrong, without line breaks and without what only maintainers of Hydra need."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        return f"{error.missing_cfg_file!r} does not exist, choose from {', '.join(error.options)}"
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    if isinstance(error, InstantiationException):
        return "; ".join(lines)
    return lines[0] if lines else type(error).__name__


def users_cause(error: BaseException) -> str | None:
    """What the user can mend of an error, in one line; None for a defect of ours."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return one_line(cause)
        if not isinstance(cause, HydraException) and (line := fault_of_machine(cause)):
            return line
        cause = cause.__cause__ or cause.__context__
    return one_line(error) if isinstance(error, HydraException | OmegaConfBaseException) else None


def tell(error: BaseException) -> str:
    """Print one line, a defect of ours with its traceback; return the line."""
    line = users_cause(error)
    if line is None:
        traceback.print_exception(error)
        line = str(error) or repr(error)
    print(f"error: {line}", file=sys.stderr)
    return line
