"""The Python interface: place a model or graph on a machine, inspect and execute the placement."""

from doppler.api.executing import execute
from doppler.api.placed import Placed
from doppler.api.placing import place

__all__ = ["Placed", "execute", "place"]
