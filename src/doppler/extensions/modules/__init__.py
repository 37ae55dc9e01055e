"""Converts torch modules to einsum programs."""

from doppler.extensions.modules.binding import Binding, as_call
from doppler.extensions.modules.exporting import load_exported
from doppler.extensions.modules.module import TorchProgram, import_module
from doppler.extensions.modules.workload import check_memory, load_module

__all__ = [
    "Binding",
    "TorchProgram",
    "as_call",
    "check_memory",
    "import_module",
    "load_exported",
    "load_module",
]
