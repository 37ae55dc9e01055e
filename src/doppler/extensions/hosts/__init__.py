"""Several hosts: agents that execute parts of a placement, emulated machines, and Ray clusters.

Training on a Ray cluster is in on_ray.py and not loaded here: agents are copies of a process that
has loaded this package, and what training needs may have begun to use a GPU, which no copy can.
"""

from doppler.extensions.hosts.systems import Emulated, Hosts

__all__ = ["Emulated", "Hosts"]
