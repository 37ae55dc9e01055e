"""What failed in the runs of a sweep, wherever its launcher runs them.

The process of the command line makes a folder and names it in its environment, which every
process that a launcher starts inherits; a run that fails leaves its line there.
"""

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
)
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    OmegaConfBaseException,
)

from doppler.experiment.checking import ESCAPED, unknown
from doppler.support.errors import InputError, fault_of_machine

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
    if isinstance(error, ConfigCompositionException) and (line := _of_override(error)):
        return line
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    if isinstance(error, InstantiationException):
        return "; ".join(lines)
    return lines[0] if lines else type(error).__name__


def users_cause(error: BaseException) -> str | None:
    """What the user can mend of an error, in one line; None for a defect of ours.

    What a part of the configuration raised when it was made is told by Hydra or OmegaConf; only if
    it is an InputError it is the user's: options have been checked by then.
    """
    chain = [error]
    while (within := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(within)
    told_by = (HydraException, OmegaConfBaseException)
    cause = next((each for each in chain if not isinstance(each, told_by)), None)
    if isinstance(cause, InputError):
        return one_line(cause)
    # Of Hydra's own errors one is an OSError, which is about no file of the user's.
    others = (each for each in chain if not isinstance(each, HydraException))
    if line := next(filter(None, map(fault_of_machine, others)), None):
        return line
    is_told = isinstance(error, told_by) and not isinstance(error, InstantiationException)
    return one_line(error) if is_told else None


def _of_override(error: ConfigCompositionException) -> str | None:
    """A line of ours on an override that Hydra does not take."""
    within = error.__cause__
    if isinstance(within, ConfigAttributeError | ConfigKeyError):
        key, part = str(within.full_key), within.parent_node
        known = [str(each) for each in part or () if each != "hydra"]
        return unknown(key, known)
    if isinstance(within, GrammarParseError):
        return f"{str(error).splitlines()[0]}: {ESCAPED}"
    found = re.match("Ambiguous value for argument '(.*)'$", str(error).splitlines()[0])
    if found:
        key, _, value = found[1].removeprefix("++").partition("=")
        value = ",".join(one.strip("'") for one in value.split(","))
        return (
            f"{key}={value}: a comma separates the values of a sweep (-m); "
            f"one value that has a comma is quoted: \"{key}='{value}'\""
        )
    return None


def tell(error: BaseException) -> str:
    """Print one line, a defect of ours with its traceback; return the line."""
    line = users_cause(error)
    if line is None:
        traceback.print_exception(error)
        line = str(error) or repr(error)
    print(f"error: {line}", file=sys.stderr)
    return line
