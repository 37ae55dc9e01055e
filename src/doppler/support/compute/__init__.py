"""Where jobs are done that do not depend on each other; the hosts extension adds a Ray cluster."""

from doppler.support.compute.contract import Compute, Pool, chosen, computing

__all__ = ["Compute", "Pool", "chosen", "computing"]
