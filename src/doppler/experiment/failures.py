"""Turns errors into one line for the user, and collects the lines of a sweep's failed runs.

Launchers run a sweep's runs in other processes. The process of the command line makes a folder and
names it in its environment, which the other processes inherit; a run that fails writes its line
into that folder. Launchers cannot return the lines themselves, because Hydra ends a batch of runs
at the first error.
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
from doppler.experiment.resolvers import choices_of
from doppler.support.errors import InputError, fault_of_machine

_FOLDER = "DOPPLER_FAILURES"
# Of Hydra 1.3: sets the options of the command line in the configuration.
_APPLIES_OVERRIDES = "_apply_overrides_to_config"


class RunError(Exception):
    """A run of a sweep failed. Its message is one line that has already been printed."""


@contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the lines of failed runs; the list is filled when the context ends."""
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
    """Write the line of a failed run, for `collected` to read.

    Args:
        line: says what failed.
        number: index of the run in its sweep; lines are sorted by it.

    Returns:
        False if the folder is on another machine.
    """
    try:
        Path(os.environ[_FOLDER], str(number)).write_text(line, encoding="utf-8")
    except (KeyError, OSError):
        return False
    return True


def one_line(error: BaseException) -> str:
    """The message of an error in one line, without Hydra's internal details."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = str(error.missing_cfg_file)
        choices = choices_of(missing.partition("/")[0]) or error.options
        if choices:
            return f"{missing!r} does not exist, choose from {', '.join(choices)}"
    if isinstance(error, ConfigCompositionException) and (line := _of_override(error)):
        return line
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    if isinstance(error, InstantiationException):
        return "; ".join(lines)
    return lines[0] if lines else type(error).__name__


def users_cause(error: BaseException) -> str | None:
    """Return the one line for an error that the user can fix; None for a bug in Doppler.

    Hydra wraps whatever is raised while it instantiates a part of the configuration. Options have
    been checked by then, so only an InputError among the causes is the user's.

    Args:
        error: as it was raised.
    """
    if line := _of_list(error):
        return line
    chain = [error]
    while (within := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(within)
    told_by = (HydraException, OmegaConfBaseException)
    cause = next((each for each in chain if not isinstance(each, told_by)), None)
    if isinstance(cause, InputError):
        return one_line(cause)
    # One of Hydra's own errors is an OSError that is not about the user's files.
    others = (each for each in chain if not isinstance(each, HydraException))
    if line := next(filter(None, map(fault_of_machine, others)), None):
        return line
    is_told = isinstance(error, told_by) and not isinstance(error, InstantiationException)
    return one_line(error) if is_told else None


def _of_override(error: ConfigCompositionException) -> str | None:
    """Return our own line for an override that Hydra refuses, if there is one."""
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


def _of_list(error: BaseException) -> str | None:
    """Our own line for an option such as ``search.lists.z=1``, which names a part of a list.

    OmegaConf's error does not say which override it was, and Hydra does not catch it.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    where = next((one for one in frames if one.f_code.co_name == _APPLIES_OVERRIDES), None)
    if where is None or not isinstance(error, ValueError | TypeError):
        return None
    name = where.f_locals["override"].key_or_group
    return f"{name}: a list has no part of this name; set the whole list, OPTION=[...]"


def tell(error: BaseException) -> str:
    """Print an error in one line, with a traceback if it is a bug in Doppler; return the line."""
    line = users_cause(error)
    if line is None:
        traceback.print_exception(error)
        line = str(error) or repr(error)
    print(f"error: {line}", file=sys.stderr)
    return line
