"""Runs: configuration, directories, stages, and how methods are judged."""

from importlib import import_module
from typing import TYPE_CHECKING

from doppler.experiment.resolvers import register_resolvers

if TYPE_CHECKING:
    from doppler.experiment.calibrate import Calibrate
    from doppler.experiment.describe import Describe
    from doppler.experiment.evaluate import Evaluate
    from doppler.experiment.imitation import ImitationStage
    from doppler.experiment.inference import Inference
    from doppler.experiment.rl_real import RealReinforcement
    from doppler.experiment.rl_sim import SimulatedReinforcement
    from doppler.experiment.run import Run, Stage, execute
    from doppler.experiment.train import Train

__all__ = [
    "Calibrate",
    "Describe",
    "Evaluate",
    "ImitationStage",
    "Inference",
    "RealReinforcement",
    "Run",
    "SimulatedReinforcement",
    "Stage",
    "Train",
    "execute",
]

_HOME = {
    **{"Calibrate": "calibrate", "Describe": "describe", "Evaluate": "evaluate"},
    **{"Inference": "inference", "Run": "run", "Stage": "run", "execute": "run"},
    **{"ImitationStage": "imitation", "SimulatedReinforcement": "rl_sim", "Train": "train"},
    **{"RealReinforcement": "rl_real"},
}

register_resolvers()  # a configuration is composed, and shown, before anything runs


def __getattr__(name: str) -> object:
    # The command line answers a mistyped option, or --help, without waiting for torch.
    if name in _HOME:
        return getattr(import_module(f"doppler.experiment.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
