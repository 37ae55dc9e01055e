"""Finds the folders that come with the package: conf/ and workloads/.

A checkout has them at its top level, a wheel inside the package.
"""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def resource(name: str) -> Path:
    """Return a folder of the package; a checkout's own folder goes first.

    Args:
        name: ``conf`` or ``workloads``.
    """
    checkout = _PACKAGE.parents[1]
    if (checkout / "pyproject.toml").exists() and (checkout / name).is_dir():
        return checkout / name
    return _PACKAGE / name
