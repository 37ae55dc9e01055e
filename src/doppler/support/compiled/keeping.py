"""Machine code on disk, which is valid until something changes that it was compiled from.

A wheel may come with machine code (prebuilt.py), which is valid under the same conditions.

Like pieces.py, this uses parts of numba that are not public. numba checks only the file of the
function itself, although the machine code contains everything that the function calls. Here every
file begins with a digest of all that it was compiled from (sources.py). Loading a file executes it,
so files that other users may have written are ignored, and their code is compiled again.
"""

import hashlib
import os
import pickle
import stat
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite
import numba
import numpy as np

from doppler.support.compiled.pieces import rebuild_piece, set_environments
from doppler.support.compiled.prebuilt import FOLDER, X86, runs_here
from doppler.support.compiled.sources import describe, describe_type

try:
    from numba.core import config
    from numba.core.caching import CompileResultCacheImpl, NullCache
    from numba.core.serialize import dumps
except ImportError as error:
    raise ImportError(
        f"numba {numba.__version__} keeps compiled code in a way that doppler does not know"
    ) from error

_DIGEST_SIZE = hashlib.sha256().digest_size
_CONFIG: Any = config
if _CONFIG.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT: unset it, doppler runs compiled code only")
# Settings that affect all compiled code.
COMPILER = (
    f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, numpy {np.__version__}, "
    f"optimised {_CONFIG.OPT}, checked {_CONFIG.BOUNDSCHECK}"
)

# Functions that this process compiled because they were not cached, once per argument types.
compilations: list[str] = []


def keep(dispatcher: Any, *, is_piece: bool = False) -> None:
    """Let a dispatcher of numba look for machine code on disk before it compiles.

    The place is numba's: ``NUMBA_CACHE_DIR``, otherwise ``__pycache__`` next to the source,
    otherwise the user's cache folder. If none of them is writable, nothing is kept.

    Args:
        dispatcher: of numba.
        is_piece: whether it compiles with `pieces.PieceCompiler`.
    """
    assert isinstance(dispatcher._cache, NullCache), "this numba has its cache elsewhere"
    dispatcher._cache = _KeptCode(dispatcher, is_piece)


class _KeptCode:
    """The machine code of one function: one file per combination of argument types and processor.

    Its methods are those that a dispatcher of numba calls.
    """

    def __init__(self, dispatcher: Any, is_piece: bool) -> None:
        self._function, self._is_piece = dispatcher.py_func, is_piece
        kind = "intermediate code" if is_piece else "machine code"
        self._options = f"{kind} {sorted(dispatcher.targetoptions.items())}"
        try:
            self._numba = CompileResultCacheImpl(dispatcher.py_func)
        except RuntimeError:  # no folder is writable
            self._numba = None
        self.cache_path = self._numba.locator.get_cache_path() if self._numba else ""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kept code for arguments of these types, or None if there is no valid one."""
        if self._numba is None:
            return None
        target_context.refresh()
        system, *processor = target_context.codegen().magic_tuple()
        data = self._valid(self._file(sig, system, *processor), sig)
        if data is None and not self._is_piece and runs_here():
            file = FOLDER / self._file(sig, system, *X86).name
            data = self._valid(file, sig)
        if data is None:
            return None
        rebuild = rebuild_piece if self._is_piece else self._numba.rebuild
        return rebuild(target_context, pickle.loads(data))

    def _valid(self, file: Path, sig: Any) -> bytes | None:
        """Return what a file keeps for arguments of these types; None if that is not valid."""
        kept = self._read(file)
        data = kept[2 * _DIGEST_SIZE :]
        return data if kept.startswith(self._stamp(sig) + _digest(data)) else None

    def _read(self, file: Path) -> bytes:
        """Return the content of a file; nothing if somebody else may have written it.

        Unpickling executes the file. So it must belong to somebody who could change this program
        anyway: the user of this process, root, or the owner of the source.
        """
        try:
            trusted = {os.getuid(), 0, os.stat(self._function.__code__.co_filename).st_uid}
            # These flags refuse links, and do not wait for a pipe.
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as opened:
                status = os.fstat(descriptor)
                by_others = status.st_uid not in trusted or status.st_mode & stat.S_IWOTH
                if by_others or not stat.S_ISREG(status.st_mode):
                    return b""
                return opened.read()
        except OSError:
            return b""

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep code that has just been compiled; other processes may do so at the same time."""
        compilations.append(f"{self._function.__module__}.{self._function.__qualname__}")
        if not self._is_piece:
            set_environments(data)
        if self._numba is None or not self._numba.check_cachable(data):
            return
        file = self._file(sig, *data.codegen.magic_tuple())
        unfinished = file.with_suffix(f".{uuid4().hex}")
        code = dumps(self._numba.reduce(data))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(self._stamp(sig) + _digest(code) + code)
            os.replace(unfinished, file)
        except OSError:  # for example a full disk; then the next process compiles again
            unfinished.unlink(missing_ok=True)

    def _file(self, sig: Any, *target: str) -> Path:
        """The file for arguments of these types, and a system, processor and its features."""
        kind = f"{[describe_type(t, []) for t in sig]} {self._options} {target}"
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        name = name.replace("<", "").replace(">", "")
        kind = _digest(kind.encode()).hex()[:16]
        # With -O functions have no assertions, and with -OO no docstrings, so their code differs.
        optimised = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
        tag = f"{sys.implementation.cache_tag}{optimised}"
        suffix = ".piece.nbc" if self._is_piece else ".nbc"
        return Path(self.cache_path) / f"{name}-{kind}.{tag}{suffix}"

    def _stamp(self, sig: Any) -> bytes:
        """Return the digest of everything that the code for these arguments is compiled from."""
        return _digest(f"{COMPILER} {self._options} {describe(self._function, sig)}".encode())


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
