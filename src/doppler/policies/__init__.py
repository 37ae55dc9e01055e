"""Policies with a common interface, and a base class for your own."""

from doppler.policies.contract import Bindable, Decisions, DivergedError, Policy, Returns
from doppler.policies.dual import DualPolicy
from doppler.policies.dual_per_step import StepwiseDualPolicy
from doppler.policies.fixed_order import FixedOrderPolicy
from doppler.policies.gdp import GDP
from doppler.policies.one_pass import OnePassPolicy
from doppler.policies.paper import PaperPolicy
from doppler.policies.placeto import Placeto

__all__ = [
    "GDP",
    "Bindable",
    "Decisions",
    "DivergedError",
    "DualPolicy",
    "FixedOrderPolicy",
    "OnePassPolicy",
    "PaperPolicy",
    "Placeto",
    "Policy",
    "Returns",
    "StepwiseDualPolicy",
]
