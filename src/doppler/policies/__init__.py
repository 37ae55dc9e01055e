"""Policies behind one contract: the dual policy, the paper's own, Placeto and GDP."""

from doppler.policies.contract import Bindable, Decisions, DivergedError, Policy, Returns
from doppler.policies.dual import DualPolicy
from doppler.policies.dual_per_step import StepwiseDualPolicy
from doppler.policies.gdp import GDP
from doppler.policies.paper import PaperPolicy
from doppler.policies.placeto import Placeto

__all__ = [
    "GDP",
    "Bindable",
    "Decisions",
    "DivergedError",
    "DualPolicy",
    "PaperPolicy",
    "Placeto",
    "Policy",
    "Returns",
    "StepwiseDualPolicy",
]
