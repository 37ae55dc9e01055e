"""Files that a run of a pipeline also writes: schedule.csv and a picture; and torch's schedules."""

from typing import Any

import numpy as np

from doppler.experiment.artifacts import Artifact
from doppler.experiment.run import Run
from doppler.extensions.pipelines.handing_over import check_orders
from doppler.extensions.pipelines.orders import orders_of
from doppler.extensions.pipelines.picture import save_pipeline_picture
from doppler.extensions.pipelines.schedule_files import save_orders
from doppler.extensions.pipelines.searching import judged_schedules
from doppler.extensions.pipelines.stages import PipelineGraph
from doppler.problem import Problem
from doppler.support.errors import InputError
from doppler.system import System
from doppler.trace import Trace

SCHEDULE_FILE, PICTURE_FILE = "schedule.csv", "pipeline.png"


def leave_schedule(run: Run, trace: Trace, title: str) -> Artifact | None:
    """Write the schedule of a trace, and its picture, if the trace is of a pipeline.

    Args:
        run: that found the placement; its simulator judges torch's own schedules, too.
        trace: of the best placement.
        title: of the picture.

    Returns:
        Peak memory of the schedule, and makespan and memory of torch's schedules; None for other
        graphs. Where torch's runtime would not finish the schedule, its file is left out, and a
        line says why.
    """
    problem, directory = trace.problem, run.directory.path
    if not isinstance(problem.graph, PipelineGraph):
        return None
    orders = orders_of(trace)
    told = f"{SCHEDULE_FILE} is for torch.distributed.pipelining (docs/pipelines.md)"
    try:
        check_orders(orders)
        save_orders(orders, directory / SCHEDULE_FILE)
    except InputError as error:
        told = f"no {SCHEDULE_FILE} for torch: {error}"
    save_pipeline_picture(trace, directory / PICTURE_FILE, title=title)
    table = _table(problem, run.spec.simulator)
    summary = {"peak_bytes": trace.peak_bytes.tolist(), "torch_schedules": table}
    return Artifact(summary=summary, lines=[*_lines(table), told])


def _table(problem: Problem, system: System) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "makespan_s": one.seconds,
            "peak_bytes": one.peak_bytes.tolist(),
            "fits": one.fits,
        }
        for name, one in judged_schedules(problem, system).items()
    }


def _lines(table: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"torch's {name}: {one['makespan_s']:.6g} s, {np.max(one['peak_bytes']):.4g} bytes"
        + ("" if one["fits"] else " (does not fit)")
        for name, one in table.items()
    ]
