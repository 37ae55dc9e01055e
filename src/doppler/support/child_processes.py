"""Processes that we start never import modules from the working directory.

Whoever starts a run in a folder of somebody else's trusts none of its files: a ``torch.py`` there
must not run. Python looks into the working directory first where it is started by ``-c`` or ``-m``,
which is how multiprocessing, launchers and we start other processes of Python.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SAFE = "PYTHONSAFEPATH"


@contextmanager
def without_working_directory() -> Iterator[None]:
    """Let the processes that are started in this context leave the working directory out.

    What the user names in ``PYTHONPATH`` they import as before.
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
    """Where this process imports from, as ``PYTHONPATH`` of another."""
    return os.pathsep.join(one for one in sys.path if os.path.isabs(one))
