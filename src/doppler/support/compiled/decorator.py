"""Compiles functions: to be called from Python, and as parts of other compiled functions."""

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from operator import attrgetter
from typing import Any

import numba

from doppler.support.compiled.keeping import keep
from doppler.support.compiled.pieces import PieceCompiler

# `_nrt=False` compiles without numba's reference counting. The engines allocate nothing, and
# counting references to a dozen arrays at every call made them 2.5 times slower.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
_PIECE: dict[str, Any] = {"no_cpython_wrapper": True, "pipeline_class": PieceCompiler}


class Compiled:
    """A function that is compiled at its first call, once for each combination of argument types.

    Args:
        function: to compile.
        inlined: whether compiled callers inline it.

    Attributes:
        entry: called by Python.
        piece: called, and usually inlined, by compiled callers. It has no machine code of its own
            and no entry from Python, which would take half of the compile time (pieces.py).
    """

    def __init__(self, function: Callable, *, inlined: bool = True) -> None:
        update_wrapper(self, function)
        self.entry: Any = numba.njit(**_OPTIONS)(function)
        self.piece: Any = numba.njit(**_OPTIONS, **_PIECE, forceinline=inlined)(function)
        # Machine code is found by its arguments' types, which include functions. numba gives those
        # a new random identity in every process; by name, an earlier process's code is found.
        self.piece._set_uuid(f"{function.__module__}.{function.__qualname__}")
        keep(self.entry)
        keep(self.piece, is_piece=True)

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code for these arguments."""
        return self.entry(*[a.piece if type(a) is Compiled else a for a in arguments])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: another process finds the compiled code on disk."""
        function = self.entry.py_func
        return _by_name, (function.__module__, function.__qualname__)

    @property
    def signatures(self) -> list[tuple]:
        """The argument types, as numba's types, with which Python has called this function."""
        return list(self.entry.signatures)

    @property
    def _numba_type_(self) -> Any:
        """The type of this function in compiled code; numba looks for this name."""
        return self.piece._numba_type_


def _by_name(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def compiled(function: Callable) -> Compiled:
    """Compile a function, and keep the machine code for the next process.

    The code is kept until something changes that it was compiled from (sources.py). It runs without
    the GIL and must not allocate. Arrays that are passed must be writable and C-contiguous; other
    arrays would compile it once more. A compiled function can be an argument of another one, which
    is then compiled and kept once for each such function.

    Args:
        function: in the part of Python that numba compiles.
    """
    return Compiled(function)


def compiled_apart(function: Callable) -> Compiled:
    """Compile a function as `compiled` does, but do not inline it into compiled callers.

    Many large functions compile sooner in this way.

    Args:
        function: in the part of Python that numba compiles.
    """
    return Compiled(function, inlined=False)
