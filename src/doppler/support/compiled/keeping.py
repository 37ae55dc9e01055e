"""Machine code on disk: found again as long as nothing changes that it was compiled from.

Like pieces.py, this uses parts of numba that are not public. numba looks at the
file of the function alone, although machine code contains all that the function calls; here every
file begins with a digest of what it was compiled from (sources.py). Loading a file executes it:
files of other users are left alone, and their code is compiled anew.
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
_COMPILER = (
    f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, numpy {np.__version__}, "
    f"optimised {_CONFIG.OPT}, checked {_CONFIG.BOUNDSCHECK}"
)

# Functions that this process compiled because they were not cached, once per argument types.
compilations: list[str] = []


def keep(dispatcher: Any, *, is_piece: bool = False) -> None:
    """Let a dispatcher of numba look for its machine code on disk before it compiles.

    The place is that of numba: ``NUMBA_CACHE_DIR``, else ``__pycache__`` beside the source, else
    the user's folder of caches. Where none can be written to, nothing is kept.
    """
    assert isinstance(dispatcher._cache, NullCache), "this numba has its cache elsewhere"
    dispatcher._cache = _KeptCode(dispatcher, is_piece)


class _KeptCode:
    """The machine code of one function: a file for each kind of arguments and of processor.

    Its methods are those that a dispatcher of numba calls.
    """

    def __init__(self, dispatcher: Any, is_piece: bool) -> None:
        self._function, self._is_piece = dispatcher.py_func, is_piece
        kind = "intermediate code" if is_piece else "machine code"
        self._options = f"{kind} {sorted(dispatcher.targetoptions.items())}"
        try:
            self._numba = CompileResultCacheImpl(dispatcher.py_func)
        except RuntimeError:  # no place for it
            self._numba = None
        self.cache_path = self._numba.locator.get_cache_path() if self._numba else ""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kept code for arguments of these types, None if there is none that is valid."""
        if self._numba is None:
            return None
        target_context.refresh()
        kept = self._read(self._file(sig, target_context.codegen()))
        data = kept[2 * _DIGEST_SIZE :]
        if not kept.startswith(self._stamp(sig) + _digest(data)):
            return None
        rebuild = rebuild_piece if self._is_piece else self._numba.rebuild
        return rebuild(target_context, pickle.loads(data))

    def _read(self, file: Path) -> bytes:
        """The content of a file that may be executed; nothing if somebody else may have made it.

        To unpickle it executes it, so it has to belong to whoever might change this program anyway:
        the user of this process, root, or the owner of the source.
        """
        try:
            trusted = {os.getuid(), 0, os.stat(self._function.__code__.co_filename).st_uid}
            # Refuses links, and does not wait for a pipe.
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
        """Keep what has just been compiled, atomically: other processes may do so too."""
        compilations.append(f"{self._function.__module__}.{self._function.__qualname__}")
        if not self._is_piece:
            set_environments(data)
        if self._numba is None or not self._numba.check_cachable(data):
            return
        file = self._file(sig, data.codegen)
        unfinished = file.with_suffix(f".{uuid4().hex}")
        code = dumps(self._numba.reduce(data))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(self._stamp(sig) + _digest(code) + code)
            os.replace(unfinished, file)
        except OSError:  # a full disk: then the next process compiles too
            unfinished.unlink(missing_ok=True)

    def _file(self, sig: Any, codegen: Any) -> Path:
        kind = f"{[describe_type(t, []) for t in sig]} {self._options} {codegen.magic_tuple()}"
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        name = name.replace("<", "").replace(">", "")
        kind = _digest(kind.encode()).hex()[:16]
        # With -O functions have no assertions, and with -OO no docstrings: other code.
        optimised = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
        tag = f"{sys.implementation.cache_tag}{optimised}"
        return Path(self.cache_path) / f"{name}-{kind}.{tag}.nbc"

    def _stamp(self, sig: Any) -> bytes:
        """Digest of all that the machine code for these arguments is compiled from."""
        return _digest(f"{_COMPILER} {self._options} {describe(self._function, sig)}".encode())


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
