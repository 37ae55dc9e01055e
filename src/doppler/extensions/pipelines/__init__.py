"""Pipeline-parallel training: finds schedules, and hands them to torch.distributed.pipelining."""

from doppler.extensions.pipelines.finding import FoundSchedule, find, judge
from doppler.extensions.pipelines.handing_over import check_orders, schedule, stages_of_rank
from doppler.extensions.pipelines.orders import orders_of, placement_of_orders
from doppler.extensions.pipelines.patterns import Patterns
from doppler.extensions.pipelines.schedule_files import load_orders, save_orders
from doppler.extensions.pipelines.searching import (
    JudgedSchedule,
    ListSchedules,
    TorchSchedules,
    judged,
    judged_schedules,
)
from doppler.extensions.pipelines.stages import (
    Action,
    Orders,
    PipelineGraph,
    TrainingPipeline,
    graph_of,
)
from doppler.extensions.pipelines.workload import pipeline_parallel

__all__ = [
    "Action",
    "FoundSchedule",
    "JudgedSchedule",
    "ListSchedules",
    "Orders",
    "Patterns",
    "PipelineGraph",
    "TorchSchedules",
    "TrainingPipeline",
    "check_orders",
    "find",
    "graph_of",
    "judge",
    "judged",
    "judged_schedules",
    "load_orders",
    "orders_of",
    "pipeline_parallel",
    "placement_of_orders",
    "save_orders",
    "schedule",
    "stages_of_rank",
]
