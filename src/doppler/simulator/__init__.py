"""Compiled event-driven simulators that implement the System protocol."""

from doppler.simulator.estimates import open_estimates
from doppler.simulator.session import BulkSynchronous, Published, SimulatorSession, WorkConserving

__all__ = ["BulkSynchronous", "Published", "SimulatorSession", "WorkConserving", "open_estimates"]
