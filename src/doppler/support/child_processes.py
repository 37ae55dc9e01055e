"""Keeps Python processes that we start from importing modules from the working directory.

A run that is started in somebody else's folder must not execute their files, such as a
``torch.py``. Python searches the working directory first if it is started by ``-c`` or ``-m``,
which is how multiprocessing, launchers and this program start other Python processes.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SAFE = "PYTHONSAFEPATH"


@contextmanager
def without_working_directory() -> Iterator[None]:
    """Keep the working directory out of the import path of processes started in this context.

    Folders in the user's ``PYTHONPATH`` stay.
    """
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE, None)
        else:
            os.environ[_SAFE] = before


def import_path() -> str:
    """Return this process's import path as ``PYTHONPATH`` for another one."""
    return os.pathsep.join(one for one in sys.path if os.path.isabs(one))
