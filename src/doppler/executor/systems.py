"""The executors by name, as configurations choose them, and what they make of this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch

from doppler.executor.devices import Cores, Devices
from doppler.executor.gpus import Gpus
from doppler.executor.graphs import Graphs
from doppler.executor.session import ExecutorSession
from doppler.problem import Problem
from doppler.support.errors import InputError
from doppler.support.options import Natural, PositiveSeconds, checked
from doppler.system import SystemKind, check_hosts
from doppler.trace import Contention, ExecutionRules, Queue

_Queue = Literal["priority", "fifo", "strict"]
SYNCHRONOUS = ExecutionRules(contention="engines", queue="fifo", barriers=True)
MIN_CORES = 2  # one device would leave nothing to place

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class _Executor:
    """What every executor can be told.

    verify: compare the results of every run with plain torch, outside what is measured. timeout_s:
    how long one op or transfer may take. warm_up: runs of a session before the first that counts.
    """

    verify: bool = False
    timeout_s: PositiveSeconds = 60.0
    warm_up: Natural = 3
    kind: ClassVar[SystemKind] = "measured"
    streams: ClassVar[int] = 1
    one_host: ClassVar[str] = "executors run on this one"

    def with_noise(self, noise: float) -> Self:
        """See system.System: what is measured has noise of its own."""
        return self

    def synchronous(self) -> "SynchronousThreads | SynchronousCuda":
        """The same devices with levels and barriers."""
        kind = SynchronousCuda if isinstance(self, Cuda | SynchronousCuda) else SynchronousThreads
        return kind(verify=self.verify, timeout_s=self.timeout_s, warm_up=self.warm_up)

    def _open(
        self,
        problem: Problem,
        rules: ExecutionRules,
        devices: Devices,
        inputs: Inputs | None,
        *,
        ahead: Graphs | None = None,
    ) -> ExecutorSession:
        if inputs is None:  # what is computed does not depend on hosts, what is measured does
            check_hosts(self, problem)
        return ExecutorSession(
            problem=problem,
            execution=rules,
            devices=devices,
            verify=self.verify,
            timeout_s=self.timeout_s,
            warm_up=self.warm_up,
            ahead=ahead,
            inputs=inputs,
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Threads(_Executor):
    """The work-conserving system of simulator/work_conserving_kernels.py, on cores of this machine.

    A device is a memory of its own and at most one op at a time, which runs on one core, as does a
    copy of what it made for another device. Devices may be more than cores: then they share them.
    queue: which ready task goes first.
    """

    queue: _Queue = "priority"
    name: ClassVar[str] = "threads"
    contention: ClassVar[Contention] = "sender"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        """A session for one problem; waits while another process uses the devices.

        inputs: of the program, by name; random ones by default.

        Raises:
            InputError: the graph does not say what its ops compute, an input is missing or does
                not fit, there is too little memory, or an op fails.
        """
        rules = ExecutionRules(queue=self.queue, contention=self.contention)
        return self._open(problem, rules, Cores(problem.num_devices), inputs)


@checked
@dataclass(frozen=True, kw_only=True)
class SynchronousThreads(_Executor):
    """The bulk-synchronous system of simulator/bulk_synchronous_kernels.py, on the same devices.

    Levels, an exchange and a barrier before each; priorities are not used.
    """

    name: ClassVar[str] = "synchronous_threads"
    queue: ClassVar[Queue] = "fifo"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        return self._open(problem, SYNCHRONOUS, Cores(problem.num_devices), inputs)


@checked
@dataclass(frozen=True, kw_only=True)
class Cuda(_Executor):
    """As Threads, on GPUs; where there are fewer than devices, on several streams of each.

    queue: strict orders are captured as CUDA graphs and replayed (graphs.py), for kernels too short
    to be dispatched one by one; where that cannot be, as on several GPUs, they are issued ahead
    (issuing.py). graphs: False: they are always issued ahead. All was run on one GPU, not yet on
    several.
    """

    queue: _Queue = "priority"
    graphs: bool = True
    name: ClassVar[str] = "cuda"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        """See Threads.

        Raises:
            InputError: as there; or there is no GPU, or copies between two of them are damaged.
        """
        return self._open(
            problem,
            ExecutionRules(queue=self.queue),
            _gpus(problem),
            inputs,
            ahead=Graphs(captures=self.graphs) if self.queue == "strict" else None,
        )


@checked
@dataclass(frozen=True, kw_only=True)
class SynchronousCuda(_Executor):
    """As SynchronousThreads, on the devices of Cuda."""

    name: ClassVar[str] = "synchronous_cuda"
    queue: ClassVar[Queue] = "fifo"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        return self._open(problem, SYNCHRONOUS, _gpus(problem), inputs)


def _gpus(problem: Problem) -> Gpus:
    if not torch.cuda.is_available():
        raise InputError("system=cuda: there is no GPU; system=threads runs on the CPU")
    return Gpus(problem.num_devices)


@checked
def automatic(
    *,
    queue: _Queue = "priority",
    verify: bool = False,
    timeout_s: PositiveSeconds = 60.0,
    warm_up: Natural = 3,
) -> Threads | Cuda:
    """The executor for this machine: GPUs if there are any. Its name says what was picked."""
    executor = Cuda if torch.cuda.is_available() else Threads
    return executor(queue=queue, verify=verify, timeout_s=timeout_s, warm_up=warm_up)


def host_device_type(system: str, devices: str = "cores") -> Literal["cpu", "cuda"]:
    """What the devices of the cluster ``host`` are: GPUs if there are any, unless the system says.

    Args:
        system: the ``_target_`` of what executes or simulates placements.
        devices: its option of this name, if it has one.
    """
    name = system.rpartition(".")[2]
    if name == Cuda.__name__ or devices == "gpus":
        return "cuda"
    decides = system.startswith("doppler.simulator.") or name == automatic.__name__
    return "cuda" if decides and torch.cuda.is_available() else "cpu"


def num_host_devices(system: str, devices: str = "cores") -> int:
    """How many there are unless the configuration says: all GPUs; all cores, at least two.

    Without any GPU there is one too, which is then refused by name.
    """
    if host_device_type(system, devices) == "cuda":
        return max(1, torch.cuda.device_count())
    return max(MIN_CORES, len(os.sched_getaffinity(0)))
