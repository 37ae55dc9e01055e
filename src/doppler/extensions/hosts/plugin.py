"""Adds executors on several hosts, and jobs on a Ray cluster."""

import atexit
import os
from pathlib import Path

from doppler.hooks import implements


@implements
def config_folders() -> list[Path]:
    """Choices of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]


@implements
def run_process() -> int | None:
    """A process that torchrun started, but for the first, serves as an agent of the first one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from doppler.extensions.hosts import torchrun

    if torchrun.rank():
        return torchrun.serve_all()
    atexit.register(torchrun.end)
    return None
