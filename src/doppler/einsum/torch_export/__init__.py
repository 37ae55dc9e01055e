"""Torch modules as einsum programs."""

from doppler.einsum.torch_export.module import TorchProgram, import_module
from doppler.einsum.torch_export.workload import check_memory, load_module

__all__ = ["TorchProgram", "check_memory", "import_module", "load_module"]
