"""Graph files of other projects: DOT, GraphML, STG, WfCommons, profiled networks, networkx."""

from doppler.extensions.formats.networkx_format import from_networkx, to_networkx

__all__ = ["from_networkx", "to_networkx"]
