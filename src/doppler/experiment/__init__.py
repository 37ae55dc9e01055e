"""Runs: what they are, where they live, how they are judged, and the stages that they go through."""

from doppler.experiment.calibrate import Calibrate
from doppler.experiment.describe import Describe
from doppler.experiment.evaluate import Evaluate
from doppler.experiment.inference import Inference
from doppler.experiment.resolvers import register_resolvers
from doppler.experiment.run import Run, Stage, execute
from doppler.experiment.stage_one import ImitationStage
from doppler.experiment.stage_three import StageThree
from doppler.experiment.stage_two import Pipeline, StageTwo

register_resolvers()

__all__ = [
    "Calibrate",
    "Describe",
    "Evaluate",
    "ImitationStage",
    "Inference",
    "Pipeline",
    "Run",
    "Stage",
    "StageThree",
    "StageTwo",
    "execute",
]
