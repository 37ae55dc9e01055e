"""Stages I to III as Lightning modules that train on a list of problems."""

from doppler.training import one_process  # noqa: F401 - before Lightning

# isort: split

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
from doppler.training.options import ReinforcementOptions
from doppler.training.reinforcement import Reinforcement, TrainingProblem

__all__ = [
    "BEST",
    "LAST",
    "Imitation",
    "Reinforcement",
    "ReinforcementOptions",
    "TrainingProblem",
    "effort_of",
    "fit",
    "found_of",
    "save_checkpoint",
    "updates_done",
]
