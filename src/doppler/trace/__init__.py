"""The events of one execution, with checks, explanations and pictures."""

from typing import TYPE_CHECKING

from doppler.trace.causes import Step
from doppler.trace.checks import check, violations
from doppler.trace.events import Contention, ExecutionRules, MemoryEvents, Queue, Trace
from doppler.trace.explain import Explanation, compare, explain
from doppler.trace.perfetto import save_perfetto
from doppler.trace.usage import InterfaceUse, LinkUse

if TYPE_CHECKING:
    from doppler.trace.gantt import save_gantt

__all__ = [
    "Contention",
    "ExecutionRules",
    "Explanation",
    "InterfaceUse",
    "LinkUse",
    "MemoryEvents",
    "Queue",
    "Step",
    "Trace",
    "check",
    "compare",
    "explain",
    "save_gantt",
    "save_perfetto",
    "violations",
]


def __getattr__(name: str) -> object:
    # Imported lazily: matplotlib takes half a second.
    if name == "save_gantt":
        from doppler.trace.gantt import save_gantt

        return save_gantt
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
