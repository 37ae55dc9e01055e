"""Policies behind one contract: the dual policy, the paper's own, Placeto and GDP."""

from doppler.policies.contract import Decisions, DivergedError, Policy
from doppler.policies.dual import DualPolicy
from doppler.policies.dual_per_step import StepwiseDualPolicy
from doppler.policies.gdp import GDP
from doppler.policies.paper import PaperPolicy
from doppler.policies.placeto import Placeto

__all__ = [
    "GDP",
    "Decisions",
    "DivergedError",
    "DualPolicy",
    "PaperPolicy",
    "Placeto",
    "Policy",
    "StepwiseDualPolicy",
]
