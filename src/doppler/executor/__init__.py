"""The same graph on real devices: kernels that compute, and their execution."""

from doppler.executor.kernels import Kernel, compile_kernel
from doppler.executor.operands import assemble, cut
from doppler.executor.reference import run_graph
from doppler.executor.tensors import Outputs, check_executable, input_blocks, random_inputs

__all__ = [
    "Kernel",
    "Outputs",
    "assemble",
    "check_executable",
    "compile_kernel",
    "cut",
    "input_blocks",
    "random_inputs",
    "run_graph",
]
