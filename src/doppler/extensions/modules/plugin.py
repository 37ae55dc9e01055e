"""Adds torch modules as workloads."""

from pathlib import Path

from doppler.hooks import implements


@implements
def config_folders() -> list[Path]:
    """Return the folder of this extension's configuration."""
    return [Path(__file__).parent / "conf"]
