"""A placement problem as arrays of seconds, bytes and limits, and placements of its ops."""

from doppler.problem.arrays import ProblemArrays
from doppler.problem.problem import Placement, Problem, build, topological_priority

__all__ = ["Placement", "Problem", "ProblemArrays", "build", "topological_priority"]
