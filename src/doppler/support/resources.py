"""Where the files lie that travel with the package: conf/ and workloads/.

A checkout has them at its top level, a wheel inside the package.
"""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def resource(name: str) -> Path:
    """The folder ``conf`` or ``workloads``: the checkout's own if there is one."""
    checkout = _PACKAGE.parents[1]
    if (checkout / "pyproject.toml").exists() and (checkout / name).is_dir():
        return checkout / name
    return _PACKAGE / name
