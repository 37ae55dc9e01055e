"""Adds memory plans to the choices of ``memory`` on the command line."""

from pathlib import Path

from doppler.hooks import implements


@implements
def config_folders() -> list[Path]:
    """Return the folders of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]
