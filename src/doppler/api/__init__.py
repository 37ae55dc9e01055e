"""What a Python user imports: place a model or a graph on a machine, look at it, run it."""

from doppler.api.placed import Placed
from doppler.api.placer import Placer
from doppler.api.placing import place
from doppler.api.running import run

__all__ = ["Placed", "Placer", "place", "run"]
