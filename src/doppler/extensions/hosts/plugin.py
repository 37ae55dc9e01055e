"""Adds executors on several hosts, and jobs on a Ray cluster."""

import atexit
import os
from collections.abc import Sequence
from pathlib import Path

from doppler.hooks import implements

_ASKED_FOR = "system.launcher=torchrun"


@implements
def config_folders() -> list[Path]:
    """Return the folder of this extension's configuration."""
    return [Path(__file__).parent / "conf"]


@implements
def run_process(arguments: Sequence[str]) -> int | None:
    """Serve as an agent if torchrun started this process with a rank other than 0.

    Args:
        arguments: of the command line.

    Returns:
        The exit code; None if this process is to run the command itself.

    Raises:
        InputError: torchrun's variables are missing, or it cannot be reached.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from doppler.extensions.hosts import torchrun

    if not torchrun.has_started(asked_for=_ASKED_FOR in arguments):
        return None
    if torchrun.rank():
        return torchrun.serve_all()
    atexit.register(torchrun.end)
    return None
