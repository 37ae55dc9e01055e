"""Plans that keep a placement within the memory of its devices, and systems that execute them."""

from doppler.extensions.memory.offload import MODES, Offload, PlanningSession, SystemWithPlans, plan
from doppler.extensions.memory.plans import MemoryPlan

__all__ = [
    "MODES",
    "MemoryPlan",
    "Offload",
    "PlanningSession",
    "SystemWithPlans",
    "plan",
]
