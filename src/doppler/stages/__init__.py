"""Training stages as Lightning modules, and the wiring of a run."""

from doppler.stages.imitation import Imitation
from doppler.stages.inference import Inference
from doppler.stages.procedures import execute
from doppler.stages.reinforcement import Reinforcement

__all__ = ["Imitation", "Inference", "Reinforcement", "execute"]
