"""Adds executors on several hosts, and jobs on a Ray cluster."""

import atexit
import os
from collections.abc import Sequence
from pathlib import Path

from doppler.hooks import implements

_ASKED_FOR = "system.launcher=torchrun"


@implements
def config_folders() -> list[Path]:
    """Choices of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]


@implements
def run_process(arguments: Sequence[str]) -> int | None:
    """A process that torchrun started, but for the first, serves as an agent of the first one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from doppler.extensions.hosts import torchrun

    if not torchrun.has_started(asked_for=_ASKED_FOR in arguments):
        return None
    if torchrun.rank():
        return torchrun.serve_all()
    atexit.register(torchrun.end)
    return None
