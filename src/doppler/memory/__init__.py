"""Memory: plans that keep a placement within the memory of its devices, and systems that run them."""

from doppler.memory.offload import Memory, Offload, Refuse, SystemWithPlans, plan
from doppler.memory.plans import MemoryPlan

__all__ = ["Memory", "MemoryPlan", "Offload", "Refuse", "SystemWithPlans", "plan"]
