"""Chooses into how many parts each node of a program is split."""

from doppler.einsum.decomposition.auto import Auto
from doppler.einsum.decomposition.fewest_elements import FewestElements

__all__ = ["Auto", "FewestElements"]
