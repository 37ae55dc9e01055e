"""Doppler: learned placement of asynchronous dataflow graphs on several devices.

``doppler.place``, ``doppler.execute`` and ``doppler.Placed`` are those of `doppler.api`, imported
when they are first used.
"""

from typing import TYPE_CHECKING

from doppler.version import __version__

if TYPE_CHECKING:
    from doppler.api import Placed, execute, place

__all__ = ["Placed", "__version__", "execute", "place"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    # Imported lazily: torch and the other parts take seconds.
    if name in __all__:
        from doppler import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
