"""Finds a schedule for a pipeline from Python, with the search that conf/ describes."""

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
        orders: what each device does, in order.
        seconds: simulated seconds of a training step.
        lower_bound_s: seconds that no schedule on the given devices can beat.
        peak_bytes: [D] largest memory of activations on each device.
        trace: of the simulated step.
    """

    orders: Orders
    seconds: float
    lower_bound_s: float
    peak_bytes: NDArray[np.float64]
    trace: Trace

    def save(self, path: str | Path) -> None:
        """Write the schedule as a CSV file for torch.

        Args:
            path: of the file.
        """
        save_orders(self.orders, path)

    def save_picture(self, path: str | Path, title: str = "") -> None:
        """Write a PNG: a row for each device, and the memory below.

        Args:
            path: of the file.
            title: of the picture.
        """
        save_pipeline_picture(self.trace, path, title=title)


def find(
    pipeline: TrainingPipeline,
    memory_bytes: float | Sequence[float] | None = None,
    *,
    evaluations: int = 2000,
    seed: int = 0,
) -> FoundSchedule:
    """Search for a schedule as ``doppler run workload=pipeline_parallel`` does.

    Args:
        pipeline: its stages, microbatches and devices.
        memory_bytes: of all devices, or of each; None: unlimited.
        evaluations: number of schedules that are executed in the simulator.
        seed: of the search.

    Raises:
        InputError: no schedule that was found fits in memory.
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
    """Simulate a given schedule, to compare it with the result of `find`.

    Args:
        pipeline: its stages, microbatches and devices.
        orders: the schedule, or the path of a file that this package or torch wrote.
        memory_bytes: of all devices, or of each; None: unlimited.

    Raises:
        InputError: the schedule has other stages or microbatches, or a deadlock.
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
    """Return the search of this extension's conf/workload/pipeline_parallel.yaml.

    Args:
        evaluations: its budget.
        turns: limit of the annealing on estimates; None: that of the file.
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
