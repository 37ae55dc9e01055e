"""Torch modules as einsum programs."""

from doppler.importing.module import TorchProgram, import_module
from doppler.importing.workload import check_memory, load_module

__all__ = ["TorchProgram", "check_memory", "import_module", "load_module"]
