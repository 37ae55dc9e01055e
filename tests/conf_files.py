"""The files of conf/ and of the extensions that are there."""

from itertools import chain
from pathlib import Path

from doppler.hooks import contributed

CONF = Path(__file__).resolve().parents[1] / "conf"
_FOLDERS = (CONF, *chain(*contributed("config_folders")))
GROUP_FILES = sorted(file for folder in _FOLDERS for file in folder.glob("*/*.yaml"))


def files_of(group: str) -> list[Path]:
    """The choices of a group."""
    return [file for file in GROUP_FILES if file.parent.name == group]


def name_of(file: Path) -> str:
    """Group and choice."""
    return f"{file.parent.name}/{file.stem}"
