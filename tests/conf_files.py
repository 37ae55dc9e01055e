"""The choices of conf/ and of the extensions that are there."""

from itertools import chain
from pathlib import Path

from doppler.hooks import contributed

CONF = Path(__file__).resolve().parents[1] / "conf"
_FOLDERS = (CONF, *chain(*contributed("config_folders")))
GROUP_FILES = sorted(file for folder in _FOLDERS for file in folder.glob("*/**/*.yaml"))


def group_of(file: Path) -> str:
    """The group that a file is a choice of."""
    return _below_conf(file).parts[0]


def choice_of(file: Path) -> str:
    """What the command line calls the choice, as ``ablation/frozen``."""
    return "/".join(_below_conf(file).with_suffix("").parts[1:])


def name_of(file: Path) -> str:
    """Group and choice."""
    return f"{group_of(file)}/{choice_of(file)}"


def files_of(group: str) -> list[Path]:
    """The choices of a group."""
    return [file for file in GROUP_FILES if group_of(file) == group]


def _below_conf(file: Path) -> Path:
    return next(file.relative_to(folder) for folder in _FOLDERS if file.is_relative_to(folder))
