"""Execution on several hosts: an agent on each, which sends regions to the others by itself."""

from doppler.executor.hosts.members import telling
from doppler.executor.hosts.systems import Emulated, Hosts

__all__ = ["Emulated", "Hosts", "telling"]
