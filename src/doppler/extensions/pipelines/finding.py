"""A schedule for a pipeline from Python, by the search that conf/ describes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from doppler.baselines import lower_bound
from doppler.cluster import Cluster, preset
from doppler.extensions.pipelines.assigning import assignment_bound_s, check_room
from doppler.extensions.pipelines.picture import save_pipeline_picture
from doppler.extensions.pipelines.schedule_files import load_orders, save_orders
from doppler.extensions.pipelines.searching import JudgedSchedule, found_orders, judged
from doppler.extensions.pipelines.stages import Orders, TrainingPipeline, graph_of
from doppler.problem import Problem, build
from doppler.search import search_settings
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.trace import Trace

_STRICT: Any = WorkConserving(queue="strict")


@dataclass(frozen=True, eq=False, kw_only=True)
class FoundSchedule:
    """The best schedule that was found.

    Attributes:
        seconds: of a step, simulated.
        lower_bound_s: what no schedule on its devices undercuts.
        peak_bytes: [D] of activations.
    """

    orders: Orders
    seconds: float
    lower_bound_s: float
    peak_bytes: NDArray[np.float64]
    trace: Trace

    def save(self, path: str | Path) -> None:
        """Write schedule.csv for torch."""
        save_orders(self.orders, path)

    def save_picture(self, path: str | Path, title: str = "") -> None:
        """Write a PNG: rows of devices, memory below."""
        save_pipeline_picture(self.trace, path, title=title)


def find(
    pipeline: TrainingPipeline,
    memory_bytes: float | Sequence[float] | None = None,
    *,
    evaluations: int = 2000,
    seed: int = 0,
) -> FoundSchedule:
    """Search as ``doppler run workload=pipeline_parallel`` does.

    Args:
        pipeline: its stages, microbatches and devices.
        memory_bytes: of every device or of each; None: enough for everything.
        evaluations: schedules that are executed in the simulator.
        seed: of the search.

    Raises:
        InputError: nothing that was found fits.
    """
    cluster = _machine(pipeline, memory_bytes)
    check_room(pipeline, np.array([device.memory_bytes for device in cluster.devices]))
    problem = build(graph_of(pipeline), cluster)
    with _STRICT.open(problem) as session:
        result = pipeline_search(evaluations).place(session, np.random.default_rng(seed))
        if not np.isfinite(result.makespan_s):
            raise InputError(f"memory_bytes: no schedule of {result.evaluations} fits")
        trace = session.trace(result.placement)
    return FoundSchedule(
        orders=found_orders(problem, _STRICT, result.placement),
        seconds=result.makespan_s,
        lower_bound_s=_bound_s(problem, pipeline),
        peak_bytes=trace.peak_bytes,
        trace=trace,
    )


def judge(
    pipeline: TrainingPipeline,
    orders: Orders | str | Path,
    memory_bytes: float | Sequence[float] | None = None,
) -> JudgedSchedule:
    """Simulate a schedule as it is, to compare it with what `find` finds.

    Args:
        pipeline: its stages, microbatches and devices.
        orders: the schedule, or the path of a file: ours, or torch's own.
        memory_bytes: of every device or of each; None: enough for everything.

    Raises:
        InputError: it is for other stages or microbatches, or waits for itself.
    """
    found = load_orders(orders) if isinstance(orders, str | Path) else orders
    problem = build(graph_of(pipeline), _machine(pipeline, memory_bytes))
    return judged(problem, _STRICT, found)


def _machine(pipeline: TrainingPipeline, memory_bytes: float | Sequence[float] | None) -> Cluster:
    memory: float | Sequence[float] = 1e300 if memory_bytes is None else memory_bytes
    return preset(name="identical", num_devices=pipeline.num_devices, memory_bytes=memory)


def _bound_s(problem: Problem, pipeline: TrainingPipeline) -> float:
    known = lower_bound(problem).seconds
    device_S = pipeline.devices()
    if device_S is None:
        return known
    return max(known, assignment_bound_s(pipeline, device_S, problem.arrays.memory_bytes))


def pipeline_search(evaluations: int, turns: int | None = None):
    """The search of this extension's conf/workload/pipeline_parallel.yaml with so many evaluations.

    turns: of annealing on estimates, instead of those there.
    """
    conf = OmegaConf.load(Path(__file__).parent / "conf/workload/pipeline_parallel.yaml")
    cfg = OmegaConf.create(
        {
            "search": search_settings(),
            "budget": {"evaluations": evaluations},
            "pipeline": conf.baseline.pipeline,
        }
    )
    assert isinstance(cfg, DictConfig)
    if turns is not None:
        cfg.pipeline.steps[2].at_most = turns
    return instantiate(cfg.pipeline)
