"""How functions are compiled: as code that Python calls, or as a piece of other such code."""

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from operator import attrgetter
from typing import Any

import numba

from doppler.support.compiled.keeping import keep
from doppler.support.compiled.pieces import PieceCompiler

# `_nrt=False` compiles without numba's reference counting: the engines allocate nothing, and
# counting references to a dozen arrays at every call made them 2.5 times slower.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
_PIECE: dict[str, Any] = {"no_cpython_wrapper": True, "pipeline_class": PieceCompiler}


class Compiled:
    """A function that is compiled at its first call, once for each kind of arguments.

    Attributes:
        entry: what Python calls.
        piece: what compiled callers call and inline. It has no machine code of its own and no
            entry from Python, which would take half of the compile time (pieces.py).
    """

    def __init__(self, function: Callable, *, inlined: bool = True) -> None:
        update_wrapper(self, function)
        self.entry: Any = numba.njit(**_OPTIONS)(function)
        self.piece: Any = numba.njit(**_OPTIONS, **_PIECE, forceinline=inlined)(function)
        # A function given as an argument is part of what machine code is found by. numba draws its
        # identity anew in every process; by name, the code of an earlier process is found.
        self.piece._set_uuid(f"{function.__module__}.{function.__qualname__}")
        keep(self.entry)
        keep(self.piece, is_piece=True)

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code for these arguments."""
        return self.entry(*[a.piece if type(a) is Compiled else a for a in arguments])

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process has it by its name: what is compiled is kept there as well."""
        function = self.entry.py_func
        return _by_name, (function.__module__, function.__qualname__)

    @property
    def signatures(self) -> list[tuple]:
        """The kinds of arguments, as types of numba, that Python has called this with."""
        return list(self.entry.signatures)

    @property
    def _numba_type_(self) -> Any:
        """What this is where compiled code calls it: numba asks for it by this name."""
        return self.piece._numba_type_


def _by_name(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def compiled(function: Callable) -> Compiled:
    """Compile a function, and keep the machine code for the next process.

    It is kept as long as nothing changes that it is compiled from (sources.py). It runs without the
    GIL and must not allocate. Arrays given to it are writable and C-contiguous: another kind would
    compile it once more. A compiled function may be given to another as an argument: that one is
    compiled, and kept, once for each.
    """
    return Compiled(function)


def compiled_apart(function: Callable) -> Compiled:
    """As `compiled`, but compiled callers need not inline it: many large pieces compile sooner."""
    return Compiled(function, inlined=False)
