"""Compiles pieces: functions that only other compiled code calls.

Python never calls a piece, so it needs no machine code of its own. A piece is typed and lowered to
LLVM's intermediate code; optimisation and machine code wait for the entry that Python calls, which
links and inlines all pieces below it. By itself, numba does both for every function, and then again
for each of its callers, which took a third of the compile time.

Like keeping.py, this uses parts of numba that are not public.
"""

from typing import Any

import llvmlite.binding as llvm

try:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler, CompileResult, compile_result
except ImportError as error:
    import numba

    raise ImportError(
        f"numba {numba.__version__} compiles functions in a way that doppler does not know"
    ) from error

# How numba names globals that contain addresses.
_ADDRESSES = "numba.dynamic.globals"


class PieceCompiler(Compiler):
    """numba's compiler of functions, whose result is a `_PieceLibrary` (``pipeline_class=``)."""

    def compile_extra(self, func: Any) -> CompileResult:
        """Type and lower a function.

        Args:
            func: the function, in Python.
        """
        state: Any = self.state
        state.library = _PieceLibrary(state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _PieceLibrary(JITCodeLibrary):
    """The intermediate code of a piece and of all that it calls, as lowered."""

    @property
    def codegen(self) -> "_NoEnvironments":
        """Return a stand-in, because numba sets environments in machine code."""
        return _NoEnvironments()

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what is kept on disk: the intermediate code only."""
        return (self.name, "piece", self._get_module_for_linking().as_bitcode())

    def _optimize_final_module(self) -> None:
        """Remove unused globals, and optimise only code that still contains addresses.

        Addresses of this process must not be kept on disk. If a function is an argument, numba also
        passes its address, which nothing reads; optimisation removes it.
        """
        options = llvm.create_pipeline_tuning_options(speed_level=0)
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(self._final_module, builder)
        names = (one.name for one in self._final_module.global_variables)
        if any(name.startswith(_ADDRESSES) for name in names):
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _NoEnvironments:
    """Stands in for the machine code of a piece."""

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing: the entry that contains the piece sets the environments of all its pieces."""


def set_environments(entry: CompileResult) -> None:
    """Set the environments (module globals) of the pieces that an entry contains.

    Args:
        entry: has just been compiled.
    """
    for environment in entry._find_referenced_environments():
        entry.codegen.set_env(environment.env_name, environment)


def rebuild_piece(target_context: Any, kept: tuple) -> CompileResult:
    """Return a piece as it was when it was compiled.

    Args:
        target_context: numba's target.
        kept: from `CompileResult._reduce`.
    """
    (name, _, code), description, environment, signature, object_mode, lifted, types, *_ = kept
    library = _PieceLibrary(target_context.codegen(), name)
    library._final_module = llvm.parse_bitcode(code)
    library._finalize_final_module()
    return compile_result(
        target_context=target_context,
        typing_context=target_context.typing_context,
        library=library,
        environment=environment,
        entry_point=target_context.get_executable(library, description, environment),
        fndesc=description,
        type_annotation=types,
        signature=signature,
        objectmode=object_mode,
        lifted=lifted,
        reload_init=(),
    )
