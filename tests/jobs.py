"""Workers of jobs, for processes that import nothing else."""

import os
import signal
from pathlib import Path

from doppler.support.errors import InputError


class Counting:
    """A worker that may die."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def double(self, shared: int, number: int, dies: bool) -> int:
        """Dies the first time."""
        mark = self.folder / str(number)
        if dies and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * number + shared

    def fail(self, shared: int, number: int) -> None:
        """The second of them."""
        if number == 2:
            raise InputError(f"job {number} of {shared}: told to fail")


def impossible() -> None:
    """Nothing can be made."""
    raise OSError("nothing")
