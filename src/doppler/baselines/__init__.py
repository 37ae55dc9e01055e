"""Placement methods to compare with, and lower bounds on the makespan."""

from doppler.baselines.annealing import Annealing
from doppler.baselines.best_of_runs import placements_of_steps
from doppler.baselines.bounds import LowerBound, lower_bound
from doppler.baselines.clustering import Clustering, draw_clusterings
from doppler.baselines.contract import Baseline, SearchResult, Teacher, TooFewError
from doppler.baselines.cp_sat import CPSAT
from doppler.baselines.cpop import CPOP
from doppler.baselines.critical_path import CriticalPath
from doppler.baselines.dealing import Dealing
from doppler.baselines.enumerative import Enumerative
from doppler.baselines.etf import ETF, NearETF
from doppler.baselines.etf_queued import QueuedETF
from doppler.baselines.heft import HEFT
from doppler.baselines.judging import Judge
from doppler.baselines.naive import Random, RoundRobin, SingleDevice
from doppler.baselines.peft import PEFT
from doppler.baselines.teaching import TaughtPlacement

__all__ = [
    "CPOP",
    "CPSAT",
    "ETF",
    "HEFT",
    "PEFT",
    "Annealing",
    "Baseline",
    "Clustering",
    "CriticalPath",
    "Dealing",
    "Enumerative",
    "Judge",
    "LowerBound",
    "NearETF",
    "QueuedETF",
    "Random",
    "RoundRobin",
    "SearchResult",
    "SingleDevice",
    "TaughtPlacement",
    "Teacher",
    "TooFewError",
    "draw_clusterings",
    "lower_bound",
    "placements_of_steps",
]
