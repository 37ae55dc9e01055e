"""Adds pipeline-parallel training as a workload, and its schedules to runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from doppler.hooks import implements

if TYPE_CHECKING:
    from doppler.experiment.artifacts import Artifact
    from doppler.experiment.run import Run
    from doppler.trace import Trace


@implements
def config_folders() -> list[Path]:
    """Choices of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]


@implements
def leave_artifacts(run: "Run", trace: "Trace", title: str) -> "Artifact | None":
    """The schedule of a pipeline for torch's runtime, and its picture."""
    from doppler.extensions.pipelines.artifacts import leave_schedule

    return leave_schedule(run, trace, title)
