"""Placement methods to compare with, and lower bounds."""

from doppler.baselines.annealing import Annealing
from doppler.baselines.bounds import LowerBound, lower_bound
from doppler.baselines.contract import Baseline, SearchResult, Teacher
from doppler.baselines.critical_path import CriticalPath
from doppler.baselines.simple import Random, RoundRobin, SingleDevice

__all__ = [
    "Annealing",
    "Baseline",
    "CriticalPath",
    "LowerBound",
    "Random",
    "RoundRobin",
    "SearchResult",
    "SingleDevice",
    "Teacher",
    "lower_bound",
]
