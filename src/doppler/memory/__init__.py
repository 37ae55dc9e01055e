"""Plans that keep a placement within the memory of its devices, and systems that run them."""

from doppler.memory.offload import MODES, MemoryMode, Offload, Refuse, SystemWithPlans, plan
from doppler.memory.plans import MemoryPlan

__all__ = ["MODES", "MemoryMode", "MemoryPlan", "Offload", "Refuse", "SystemWithPlans", "plan"]
