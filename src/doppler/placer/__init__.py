"""A placer for many problems: levels of search, and when to go on, learned while they come."""

from doppler.placer.ladder import LEVELS, Climb, Level
from doppler.placer.placer import ClimbStep, ProblemPlacer
from doppler.placer.records import (
    LadderRecord,
    StreamCost,
    cost_of,
    fixed_costs,
    hindsight_cost,
    read_records,
    record,
    replay,
    to_line,
)
from doppler.placer.stopping import Climbed, WhenToGoOn

__all__ = [
    "LEVELS",
    "Climb",
    "ClimbStep",
    "Climbed",
    "LadderRecord",
    "Level",
    "ProblemPlacer",
    "StreamCost",
    "WhenToGoOn",
    "cost_of",
    "fixed_costs",
    "hindsight_cost",
    "read_records",
    "record",
    "replay",
    "to_line",
]
