"""What happened: the events of one execution, their checks, and their pictures."""

from doppler.trace.checks import check, violations
from doppler.trace.events import Contention, ExecutionRules, Queue, Trace

__all__ = ["Contention", "ExecutionRules", "Queue", "Trace", "check", "violations"]
