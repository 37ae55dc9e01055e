"""What a run of a pipeline leaves beside other runs: schedule.csv, a picture, torch's schedules."""

from pathlib import Path
from typing import Any

import numpy as np

from doppler.pipeline.handing_over import check_orders
from doppler.pipeline.orders import orders_of, save_orders
from doppler.pipeline.picture import save_pipeline_picture
from doppler.pipeline.searching import judged_schedules
from doppler.pipeline.stages import PipelineGraph
from doppler.problem import Problem
from doppler.system import System
from doppler.trace import Trace

SCHEDULE_FILE, PICTURE_FILE = "schedule.csv", "pipeline.png"


def leave_schedule(trace: Trace, system: System, directory: Path, title: str) -> dict[str, Any]:
    """Write the schedule of a trace and its picture, if it is a pipeline's.

    Args:
        trace: of the best placement.
        system: that judges torch's own schedules.
        directory: of the run.
        title: of the picture.

    Returns:
        Entries of the summary: the memory of the schedule, and what torch's take; empty elsewhere.

    Raises:
        InputError: torch's runtime would not finish the schedule.
    """
    problem = trace.problem
    if not isinstance(problem.graph, PipelineGraph):
        return {}
    orders = orders_of(trace)
    check_orders(orders)
    save_orders(orders, directory / SCHEDULE_FILE)
    save_pipeline_picture(trace, directory / PICTURE_FILE, title=title)
    return {"peak_bytes": trace.peak_bytes.tolist(), "torch_schedules": _table(problem, system)}


def _table(problem: Problem, system: System) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "makespan_s": one.seconds,
            "peak_bytes": one.peak_bytes.tolist(),
            "fits": one.fits,
        }
        for name, one in judged_schedules(problem, system).items()
    }


def told(summary: dict[str, Any]) -> list[str]:
    """What there is to say of it, a line each."""
    if "torch_schedules" not in summary:
        return []
    lines = [
        f"torch's {name}: {one['makespan_s']:.6g} s, {np.max(one['peak_bytes']):.4g} bytes"
        + ("" if one["fits"] else " (does not fit)")
        for name, one in summary["torch_schedules"].items()
    ]
    return [*lines, f"{SCHEDULE_FILE} is for torch.distributed.pipelining (docs/pipelines.md)"]
