"""Adds readers for graph files of other projects."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.hooks import implements

if TYPE_CHECKING:
    from doppler.graph.formats import GraphReader


@implements
def config_folders() -> list[Path]:
    """Return the folders of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]


@implements
def resolvers() -> dict[str, Callable[..., Any]]:
    """Return the resolver ``profiled_devices``, which conf/cluster/profiled.yaml uses."""
    return {"profiled_devices": _profiled_devices}


@implements
def graph_readers() -> "list[GraphReader]":
    """Return the readers of all formats in this folder."""
    from doppler.extensions.formats.readers import READERS

    return READERS


def _profiled_devices(path: str | None) -> list[dict[str, Any]]:
    from doppler.extensions.formats.profiled_format import devices_of, machine_of

    return devices_of(1, 1, 16e9) if path is None else machine_of(path)
