"""Policies: encoder, dual policy, and the contract that stages know them by."""

from doppler.policies.contract import Decisions, Policy
from doppler.policies.dual import DualPolicy

__all__ = ["Decisions", "DualPolicy", "Policy"]
