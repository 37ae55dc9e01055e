"""Runs a graph on real devices: kernels that compute ops, and the code that executes placements."""

from doppler.executor.kernels import Kernel, compile_kernel
from doppler.executor.operands import assemble, cut
from doppler.executor.reference import run_graph
from doppler.executor.session import ExecutionError, ExecutorSession
from doppler.executor.systems import (
    Cuda,
    SynchronousCuda,
    SynchronousThreads,
    Threads,
    automatic,
    host_device_type,
    num_host_devices,
)
from doppler.executor.tensors import Outputs, check_executable, input_blocks, random_inputs

__all__ = [
    "Cuda",
    "ExecutionError",
    "ExecutorSession",
    "Kernel",
    "Outputs",
    "SynchronousCuda",
    "SynchronousThreads",
    "Threads",
    "assemble",
    "automatic",
    "check_executable",
    "compile_kernel",
    "cut",
    "host_device_type",
    "input_blocks",
    "num_host_devices",
    "random_inputs",
    "run_graph",
]
