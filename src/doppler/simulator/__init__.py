"""Compiled event-driven simulators behind the System protocol."""

from doppler.simulator.session import (
    BulkSynchronous,
    Published,
    SimulatorSession,
    WorkConserving,
)

__all__ = ["BulkSynchronous", "Published", "SimulatorSession", "WorkConserving"]
