"""Tools for compiled code: the decorator, machine code kept on disk, a heap, and random draws."""

from doppler.support.compiled.decorator import compiled, compiled_apart
from doppler.support.compiled.keeping import compilations

__all__ = ["compilations", "compiled", "compiled_apart"]
