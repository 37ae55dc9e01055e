"""Runs: what they are, where they live, how they are judged, the stages that they go through."""

from importlib import import_module
from typing import TYPE_CHECKING

from doppler.experiment.resolvers import register_resolvers

if TYPE_CHECKING:
    from doppler.experiment.calibrate import Calibrate
    from doppler.experiment.describe import Describe
    from doppler.experiment.evaluate import Evaluate
    from doppler.experiment.inference import Inference
    from doppler.experiment.many import PlacerStage
    from doppler.experiment.run import Run, Stage, execute
    from doppler.experiment.stage_one import ImitationStage
    from doppler.experiment.stage_three import StageThree
    from doppler.experiment.stage_two import Pipeline, StageTwo
    from doppler.experiment.streaming import StreamStage

__all__ = [
    "Calibrate",
    "Describe",
    "Evaluate",
    "ImitationStage",
    "Inference",
    "Pipeline",
    "PlacerStage",
    "Run",
    "Stage",
    "StageThree",
    "StageTwo",
    "StreamStage",
    "execute",
]

_HOME = {
    **{"Calibrate": "calibrate", "Describe": "describe", "Evaluate": "evaluate"},
    **{"Inference": "inference", "Run": "run", "Stage": "run", "execute": "run"},
    **{"ImitationStage": "stage_one", "Pipeline": "stage_two", "StageTwo": "stage_two"},
    **{"PlacerStage": "many", "StageThree": "stage_three", "StreamStage": "streaming"},
}

register_resolvers()  # a configuration is composed, and shown, before anything runs


def __getattr__(name: str) -> object:
    # The command line answers a mistyped option, or --help, without waiting for torch.
    if name in _HOME:
        return getattr(import_module(f"doppler.experiment.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
