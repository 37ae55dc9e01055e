"""Policies behind one contract: the dual policy, and Placeto and GDP beside it."""

from doppler.policies.contract import Decisions, DivergedError, Policy
from doppler.policies.dual import DualPolicy
from doppler.policies.dual_per_step import StepwiseDualPolicy
from doppler.policies.gdp import GDP
from doppler.policies.placeto import Placeto

__all__ = [
    "GDP",
    "Decisions",
    "DivergedError",
    "DualPolicy",
    "Placeto",
    "Policy",
    "StepwiseDualPolicy",
]
