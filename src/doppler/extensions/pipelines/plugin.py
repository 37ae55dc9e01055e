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
    """Return the folder of this extension's configuration."""
    return [Path(__file__).parent / "conf"]


@implements
def leave_artifacts(run: "Run", trace: "Trace", title: str) -> "Artifact | None":
    """Write the schedule of a pipeline for torch's runtime, and its picture.

    Args:
        run: that found the placement.
        trace: of the best placement.
        title: of the picture.

    Returns:
        What to report; None for other graphs.
    """
    from doppler.extensions.pipelines.artifacts import leave_schedule

    return leave_schedule(run, trace, title)
