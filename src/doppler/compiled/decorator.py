"""How functions are compiled, and when kept machine code is still valid."""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numba


@cache
def _stamp_folder(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(folder.rglob("*.py"))
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def compiled(function: Callable) -> Callable:
    """Compile a function, and keep the machine code for the next process.

    numba keeps it as long as the function's own file does not change; but it contains what the
    function calls. So it is kept as long as no file of this package, and none beside the
    function's, changes. It runs without the GIL and must not allocate. A compiled function may be
    given to another as an argument: that one is compiled, and kept, once for each.
    """
    # `_nrt=False` compiles without numba's reference counting: the engines allocate nothing, and
    # counting references to a dozen arrays at every call made them 2.5 times slower.
    dispatcher = numba.njit(cache=True, nogil=True, _nrt=False, forceinline=True)(function)  # pyright: ignore[reportCallIssue]
    # A function given as an argument is part of what its machine code is found by. numba draws its
    # identity anew in every process; by name, the code of an earlier process is found.
    dispatcher._set_uuid(f"{function.__module__}.{function.__qualname__}")
    folders = {Path(__file__).parents[1], Path(inspect.getfile(function)).parent}
    file = dispatcher._cache._cache_file  # no public way to say what else a function depends on
    file._source_stamp = (file._source_stamp, *(_stamp_folder(f) for f in sorted(folders)))
    return dispatcher
