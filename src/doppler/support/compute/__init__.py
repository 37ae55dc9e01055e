"""Where independent jobs run; the hosts extension adds a Ray cluster."""

from doppler.support.compute.contract import Compute, Pool, chosen, computing

__all__ = ["Compute", "Pool", "chosen", "computing"]
