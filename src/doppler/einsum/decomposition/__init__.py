"""Into how many parts each node of a program is split."""

from doppler.einsum.decomposition.auto import Auto
from doppler.einsum.decomposition.published import Published

__all__ = ["Auto", "Published"]
