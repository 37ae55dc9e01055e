"""Executors on several hosts: agents that execute parts of a placement, and emulated machines.

Training on a Ray cluster is in on_ray.py, which is not imported here. Agents are forked from a
process that has imported this package, and a process that already uses a GPU cannot be forked;
importing what training needs might make it use one.
"""

from doppler.extensions.hosts.systems import Emulated, Hosts

__all__ = ["Emulated", "Hosts"]
