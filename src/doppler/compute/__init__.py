"""Where jobs are done that do not depend on each other: here, or on a Ray cluster."""

from doppler.compute.contract import Compute, Pool, chosen, computing
from doppler.compute.here import Here
from doppler.compute.on_ray import OnRay

__all__ = ["Compute", "Here", "OnRay", "Pool", "chosen", "computing"]
