"""Plans that keep a placement within the memory of its devices, and systems that run them."""

from doppler.memory.offload import (
    MODES,
    MemoryMode,
    Offload,
    PlanningSession,
    Refuse,
    SystemWithPlans,
    plan,
)
from doppler.memory.plans import MemoryPlan

__all__ = [
    "MODES",
    "MemoryMode",
    "MemoryPlan",
    "Offload",
    "PlanningSession",
    "Refuse",
    "SystemWithPlans",
    "plan",
]
