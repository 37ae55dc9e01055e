"""What machine code is made of: the decorator that compiles and keeps it."""

from doppler.compiled.decorator import compiled

__all__ = ["compiled"]
