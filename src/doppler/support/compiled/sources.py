"""Describes what machine code is compiled from, in a text that changes when the code would.

For a function the text has its bytecode and constants, the values of the globals that it reads, and
the same for every compiled function that it calls. For arguments it has the fields of named tuples
and the functions among them. Comments, docstrings, annotations, line numbers and other functions of
the same file do not matter.
"""

import enum
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from numba import types

# Libraries that numba compiles by itself; their versions represent their sources.
_LIBRARIES = ("numpy", "math", "numba")


def describe(function: Callable, sig: tuple[types.Type, ...]) -> str:
    """Describe everything that the machine code of a function is compiled from.

    Args:
        function: to compile.
        sig: types of its arguments.
    """
    functions = [function]
    lines = [describe_type(t, functions) for t in sig]
    known: set[Callable] = set()
    while functions:
        called = functions.pop()
        if called not in known:
            known.add(called)
            text, calls = _describe_one(called)
            lines.append(text)
            functions.extend(calls)
    return "\n".join(lines)


def describe_type(of: Any, functions: list[Callable]) -> str:
    """Describe a type of numba, including the fields of named tuples.

    Args:
        of: the type.
        functions: functions that code with this type may call are appended.
    """
    if isinstance(of, types.Dispatcher):
        functions.append(of.dispatcher.py_func)
        return f"{_name(of.dispatcher.py_func)} {sorted(of.dispatcher.targetoptions.items())}"
    if not isinstance(of, types.BaseTuple):
        return str(of)
    named = getattr(of, "instance_class", tuple)
    return f"{_describe_value(named, functions)}({[describe_type(t, functions) for t in of]})"  # pyright: ignore[reportGeneralTypeIssues]


@cache
def _describe_one(function: Callable) -> tuple[str, tuple[Callable, ...]]:
    """Describe a function alone, and return the compiled functions that it calls."""
    calls: list[Callable] = []
    lines = [_name(function), repr(function.__defaults__)]
    names: set[str] = set()
    for code in _codes(function.__code__):
        names.update(code.co_names)
        constants = [_constant(function, constant) for constant in code.co_consts]
        lines.append(repr((code.co_code, constants, code.co_names, code.co_varnames)))
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        known[name] = cell.cell_contents
        names.add(name)
    for name in sorted(names & known.keys()):
        value = known[name]
        if not isinstance(value, ModuleType):
            lines.append(f"{name} = {_describe_value(value, calls)}")
        elif value.__name__.partition(".")[0] not in _LIBRARIES:
            for inner in sorted(names & vars(value).keys()):
                lines.append(f"{name}.{inner} = {_describe_value(vars(value)[inner], calls)}")
    return "\n".join(lines), tuple(calls)


def _constant(function: Callable, constant: Any) -> Any:
    """Return a constant; None for the docstring, and for code, which is described separately."""
    if isinstance(constant, CodeType) or constant == function.__doc__:
        return None
    return constant


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _describe_value(value: Any, functions: list[Callable]) -> str:
    """Describe what compiled code can use of a global; append the functions that it can call.

    Compiled code cannot use other kinds of values. The function then only has an attribute of the
    same name.
    """
    kind = type(value)
    known_to_numba = getattr(value, "_numba_type_", None)
    if isinstance(known_to_numba, types.Dispatcher):
        return describe_type(known_to_numba, functions)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, tuple):
        members = ", ".join(_describe_value(member, functions) for member in value)
        return f"{_describe_value(kind, functions)}({members})"
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return f"{_name(value)} {list(value)}"
    if isinstance(value, type):
        return f"{_name(value)} {getattr(value, '_fields', ())}"
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
        return f"{kind.__name__} {value!r}"
    return _name(kind)


def _name(of: Any) -> str:
    return f"{of.__module__}.{of.__qualname__}"
