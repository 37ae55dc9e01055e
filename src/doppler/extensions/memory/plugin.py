"""Adds memory plans as choices of ``memory``."""

from pathlib import Path

from doppler.hooks import implements


@implements
def config_folders() -> list[Path]:
    """Choices of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]
