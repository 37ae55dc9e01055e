"""What a Python user imports: place a model or a graph on a machine, look at it, execute it."""

from doppler.api.executing import execute
from doppler.api.placed import Placed
from doppler.api.placing import place

__all__ = ["Placed", "execute", "place"]
