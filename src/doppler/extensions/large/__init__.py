"""Search on graphs of thousands of ops: windows, repeated layers, and quick first placements."""

from doppler.extensions.large.at_once import AtOnce, with_first_placements
from doppler.extensions.large.tiling import TileLayers
from doppler.extensions.large.windows import AnnealWindows

__all__ = ["AnnealWindows", "AtOnce", "TileLayers", "with_first_placements"]
