"""Compiled event-driven simulators behind the System protocol."""

from doppler.simulator.session import Published, SimulatorSession, WorkConserving

__all__ = ["Published", "SimulatorSession", "WorkConserving"]
