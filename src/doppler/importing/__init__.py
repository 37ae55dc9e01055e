"""Torch modules as einsum programs."""

from doppler.importing.binding import Binding, as_call
from doppler.importing.exporting import load_exported
from doppler.importing.module import TorchProgram, import_module
from doppler.importing.workload import check_memory, load_module

__all__ = [
    "Binding",
    "TorchProgram",
    "as_call",
    "check_memory",
    "import_module",
    "load_exported",
    "load_module",
]
