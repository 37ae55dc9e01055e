"""The executors that configurations choose by name, and how many devices this machine offers."""

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
MIN_CORES = 2  # with one device there is nothing to place

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class _Executor:
    """Options of every executor.

    Attributes:
        verify: compare the results of every execution with plain torch, outside the measured time.
        timeout_s: limit for one op or transfer, seconds.
        warm_up: executions of a session that do not count.
    """

    verify: bool = False
    timeout_s: PositiveSeconds = 60.0
    warm_up: Natural = 3
    kind: ClassVar[SystemKind] = "measured"
    streams: ClassVar[int] = 1
    one_host: ClassVar[str] = "executors run on this one"

    def with_noise(self, noise: float) -> Self:
        """Return the executor unchanged (see `system.System`): measurements have real noise."""
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
        if inputs is None:  # the number of hosts affects measurements, not results
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
    """The system of simulator/work_conserving_kernels.py on cores of this machine.

    A device has its own memory and runs at most one op at a time, on one core. Copies of its
    results for other devices take its core, too. If there are more devices than cores, they share
    cores.

    Attributes:
        queue: which ready task goes first.
    """

    queue: _Queue = "priority"
    name: ClassVar[str] = "threads"
    contention: ClassVar[Contention] = "sender"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        """Open a session for one problem; wait while another process uses the devices.

        Args:
            problem: to execute.
            inputs: of the program, by name; random by default.

        Raises:
            InputError: the graph does not say what its ops compute, an input is missing or does not
                fit, there is too little memory, or an op fails.
        """
        rules = ExecutionRules(queue=self.queue, contention=self.contention)
        return self._open(problem, rules, Cores(problem.num_devices), inputs)


@checked
@dataclass(frozen=True, kw_only=True)
class SynchronousThreads(_Executor):
    """The system of simulator/bulk_synchronous_kernels.py on cores of this machine.

    Ops run in levels, with an exchange and a barrier before each. Priorities are not used.
    """

    name: ClassVar[str] = "synchronous_threads"
    queue: ClassVar[Queue] = "fifo"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        return self._open(problem, SYNCHRONOUS, Cores(problem.num_devices), inputs)


@checked
@dataclass(frozen=True, kw_only=True)
class Cuda(_Executor):
    """Like `Threads`, on GPUs; if there are fewer GPUs than devices, devices are streams of a GPU.

    All of this was tested on one GPU, not yet on several.

    Attributes:
        queue: which ready task goes first. With a strict order, executions are captured as CUDA
            graphs and replayed (graphs.py), for kernels too short to be dispatched one by one.
            Where that is impossible, as on several GPUs, tasks are issued ahead (issuing.py).
        graphs: whether to use CUDA graphs; False: strict orders are always issued ahead.
    """

    queue: _Queue = "priority"
    graphs: bool = True
    name: ClassVar[str] = "cuda"

    def replays_graphs(self) -> bool:
        """Whether executions are replayed as CUDA graphs, if their kernels can be captured."""
        return self.queue == "strict" and self.graphs and torch.cuda.device_count() == 1

    @property
    def starts(self) -> str | None:
        """How ops are started, if not one by one: they cost several times less then."""
        if self.queue != "strict":
            return None
        return "graphs" if self.replays_graphs() else "ahead"

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> ExecutorSession:
        """Open a session for one problem (see `Threads.open`).

        Raises:
            InputError: as in `Threads.open`; or there is no GPU, or copies between two are damaged.
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
    """Like `SynchronousThreads`, on the devices of `Cuda`."""

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
    """Return the executor for this machine: GPUs if there are any. Its name says which it is.

    Args:
        queue: as in `Threads`.
        verify: as in every executor.
        timeout_s: as in every executor.
        warm_up: as in every executor.
    """
    executor = Cuda if torch.cuda.is_available() else Threads
    return executor(queue=queue, verify=verify, timeout_s=timeout_s, warm_up=warm_up)


def host_device_type(system: str, devices: str = "cores") -> Literal["cpu", "cuda"]:
    """Return the device type of ``host``: GPUs if there are any, unless the system decides it.

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
    """Return the default number of devices of ``host``: all GPUs; or all cores, at least two.

    Without a GPU the number of GPUs is one, and that GPU is later refused by name.

    Args:
        system: as in `host_device_type`.
        devices: as in `host_device_type`.
    """
    if host_device_type(system, devices) == "cuda":
        return max(1, torch.cuda.device_count())
    return max(MIN_CORES, len(os.sched_getaffinity(0)))
