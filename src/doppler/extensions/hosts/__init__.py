"""Several hosts: agents that execute parts of a placement, emulated machines, and Ray clusters."""

from doppler.extensions.hosts.on_ray import OnRay
from doppler.extensions.hosts.systems import Emulated, Hosts

__all__ = ["Emulated", "Hosts", "OnRay"]
