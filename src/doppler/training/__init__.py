"""Stages I to III as Lightning modules, on a list of problems."""

from doppler.training.checkpoints import (
    BEST,
    LAST,
    effort_of,
    found_of,
    save_checkpoint,
    updates_done,
)
from doppler.training.fit import fit
from doppler.training.imitation import Imitation
from doppler.training.learning import Learning
from doppler.training.memory import peak_bytes
from doppler.training.reinforcement import Reinforcement, Task

__all__ = [
    "BEST",
    "LAST",
    "Imitation",
    "Learning",
    "Reinforcement",
    "Task",
    "effort_of",
    "fit",
    "found_of",
    "peak_bytes",
    "save_checkpoint",
    "updates_done",
]
