"""What compiled code is made of: the decorator, how machine code is kept, a heap, random draws."""

from doppler.support.compiled.decorator import compiled, compiled_apart
from doppler.support.compiled.keeping import compilations

__all__ = ["compilations", "compiled", "compiled_apart"]
