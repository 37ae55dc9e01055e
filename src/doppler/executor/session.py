"""Executes and times placements of a problem on real devices, and checks results if asked.

Shape suffixes: B placements, R repeats, V ops, D devices, K tasks, T transfers.
"""

import gc
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor.bandwidth import bandwidths
from doppler.executor.demands import measure_demands
from doppler.executor.devices import Devices, Use
from doppler.executor.graphs import Graphs
from doppler.executor.locks import acquire, release
from doppler.executor.memory import Memory
from doppler.executor.pace import Pace
from doppler.executor.peak import peak_bytes
from doppler.executor.reference import run_graph
from doppler.executor.tasks import Tasks, Unroller
from doppler.executor.tensors import check_executable, random_inputs
from doppler.executor.workers import TaskError, TaskTimeoutError, Workers
from doppler.problem import Placement, Problem, topological_priority
from doppler.support.errors import InputError
from doppler.system import Measurement, honours_order
from doppler.trace import ExecutionRules, Trace

# Relative to the largest element of a result; integers must be equal.
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 1e-5, torch.complex64: 1e-5}

# Extra time that torch may need once to load the code of an op.
LOADING_S = 60.0


class ExecutionError(InputError):
    """An op or a transfer failed on its device; one line names it and says why."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Execution:
    """When the tasks of an execution started and finished.

    Attributes:
        tasks: that were executed.
        start_s: start [K] of each task, in seconds from the start of the execution.
        finish_s: finish [K] of each task, likewise.
        tolerance_s: how far clocks may disagree, seconds.
        outlet: [T] the network interface through which each transfer left its host, -1 for none;
            None: no transfer used one.
    """

    tasks: Tasks
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    tolerance_s: float = 0.0
    outlet: NDArray[np.int64] | None = None

    @property
    def makespan_s(self) -> float:
        """When the last op finished, in seconds; inf if tasks waited for each other in a circle."""
        last = float(self.finish_s[: self.tasks.num_ops].max())
        return last if np.isfinite(last) else np.inf


class ExecutorSession:
    """A session (`system.Session`) on real devices.

    Peak memory is that of the measured executions, by the simulator's rules.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        execution: ExecutionRules,
        devices: Devices,
        verify: bool,
        timeout_s: float,
        warm_up: int,
        ahead: Graphs | None,
        inputs: Mapping[str, torch.Tensor] | None,
    ) -> None:
        check_executable(problem.graph)
        self._describe_problem(problem, execution, timeout_s)
        self._ahead = ahead
        self._workers, self._devices = Workers(), devices
        acquire(devices.locks)
        # A finaliser, so that threads and locks also end with a session that is never closed.
        self.close = weakref.finalize(self, _close, self._workers, devices.locks)
        try:
            self._prepare(devices, inputs, verify, warm_up)
        except BaseException:
            self.close()
            raise

    def _describe_problem(
        self, problem: Problem, execution: ExecutionRules, timeout_s: float
    ) -> None:
        self.problem, self.execution, self.evaluations = problem, execution, 0
        self.honours_order, self.is_random = honours_order(execution.queue), True
        self._timeout_s = timeout_s
        self._unroller = Unroller(problem.graph, problem.num_devices)
        self._topological = topological_priority(problem)
        self._pace = Pace(problem)

    def _prepare(
        self,
        devices: Devices,
        inputs: Mapping[str, torch.Tensor] | None,
        verify: bool,
        warm_up: int,
    ) -> None:
        graph, num_ops, num_devices = self.problem.graph, self.problem.num_ops, devices.num_devices
        if inputs is None:
            inputs = random_inputs(graph, np.random.default_rng(0))
        self._memory = Memory(graph, devices, inputs)
        self._expected = run_graph(graph, inputs) if verify else None
        for d in range(num_devices):  # every op runs once on every device, one after another
            tasks = self._unroller.synchronous([d] * num_ops)
            actions = [partial(self._memory.plan, v, d) for v in range(num_ops)]
            self._run(tasks, actions, self._timeout_s + LOADING_S)
        for _ in range(warm_up):
            self._execute(np.arange(num_ops) % num_devices, self._topological)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        self._free()

    def _free(self) -> None:
        """Give the memory back: a training keeps its session while others are opened."""
        if self._workers.is_lost:  # something may still run
            return
        self._expected = None
        if self._ahead is not None:
            self._ahead.free()
        self._memory.free()

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        """Execute placements, all once before any is repeated (see `system.Session`).

        Raises:
            ExecutionError: an op or a transfer failed, or hangs.
        """
        device_BV = np.asarray(device_BV, dtype=np.int64)
        num, num_ops = device_BV.shape
        assert num_ops == self.problem.num_ops
        assert num == 0 or 0 <= device_BV.min() <= device_BV.max() < self.problem.num_devices
        if priority_BV is None:
            priority_BV = np.broadcast_to(self._topological, device_BV.shape)
        assert priority_BV.shape == device_BV.shape
        allowed_B = self.problem.allows(device_BV)
        seconds_BR = np.full((num, repeats), np.inf)
        peak_BD = np.zeros((num, self.problem.num_devices))
        for r in range(repeats):
            for b in range(num):
                if not allowed_B[b]:
                    continue
                execution = self._execute(device_BV[b], priority_BV[b])
                seconds_BR[b, r] = execution.makespan_s
                if np.isfinite(execution.makespan_s):
                    taken_V = (execution.finish_s - execution.start_s)[:num_ops]
                    self._pace.note(device_BV[b], taken_V)
                    peak_BD[b] = np.maximum(peak_BD[b], self._peak_bytes(execution))
        self.evaluations += num * repeats
        fits_B = ~(peak_BD > self.problem.arrays.memory_bytes).any(axis=1)
        return Measurement(
            seconds=seconds_BR,
            peak_bytes=peak_BD,
            feasible=fits_B & np.asarray(np.isfinite(seconds_BR).all(axis=1)),
        )

    def as_executed(self) -> Problem:
        """The problem with ops as fast as in the executions so far (see `Pace`)."""
        return self._pace.applied()

    def trace(self, placement: Placement) -> Trace:
        """Execute one placement (see `system.Session`); times are those of the dispatcher.

        A task starts when it is given to its resource and finishes when the resource has reported
        its end. Handing the task over counts as part of it.

        Raises:
            InputError: the placement is for another problem, or its strict order has a circle.
            ExecutionError: an op or a transfer failed, or hangs.
        """
        execution = self._execute_to_end(placement)
        tasks, num_ops = execution.tasks, self.problem.num_ops
        transfers = slice(num_ops, num_ops + tasks.num_transfers)
        ends_T2 = np.array(tasks.ends, dtype=np.int64).reshape(-1, 2)
        return Trace(
            problem=self.problem,
            placement=placement,
            system_kind="measured",
            rules=self.execution,
            op_stream=np.zeros(num_ops, dtype=np.int64),
            op_start_s=execution.start_s[:num_ops],
            op_finish_s=execution.finish_s[:num_ops],
            transfer_region=np.array(tasks.region, dtype=np.int64),
            transfer_src=ends_T2[:, 0],
            transfer_dst=ends_T2[:, 1],
            transfer_start_s=execution.start_s[transfers],
            transfer_finish_s=execution.finish_s[transfers],
            peak_bytes=self._peak_bytes(execution),
            transfer_outlet=np.full(len(ends_T2), -1)
            if execution.outlet is None
            else execution.outlet,
            transfer_inlet=np.full(len(ends_T2), -1),
            tolerance_s=execution.tolerance_s,
        )

    def results(self, placement: Placement) -> dict[str, torch.Tensor]:
        """Execute one placement and return the results of the program, by name.

        Raises:
            InputError: as in `trace`.
            ExecutionError: as in `trace`.
        """
        self._execute_to_end(placement)
        return self._memory.outputs(placement.device.tolist())

    def use(self, placement: Placement, seconds: float) -> list[Use]:
        """Execute one placement repeatedly, and return how busy the GPUs are; empty for cores.

        These executions do not count as evaluations.

        Args:
            placement: to execute.
            seconds: how long to go on.

        Returns:
            The use of each GPU; energy is that of one execution.

        Raises:
            InputError: as in `trace`.
            ExecutionError: as in `trace`.
        """
        until_s = time.monotonic() + seconds
        before, num = self._devices.use(), 0
        if not before:
            return []
        while time.monotonic() < until_s or num == 0:
            self._execute_to_end(placement)
            num += 1
        return [
            use._replace(energy_j=_each(use.energy_j, earlier.energy_j, num))
            for use, earlier in zip(self._devices.use(), before, strict=True)
        ]

    def bandwidths(self) -> NDArray[np.float64] | None:
        """Bytes per second between devices [D, D] if known (see `bandwidth.bandwidths`)."""
        return bandwidths(self._devices)

    def demands(self) -> dict[str, NDArray[np.float64]]:
        """Use of shared resources by kernels (see `demands.measure_demands`)."""
        return measure_demands(self._devices, self.problem)

    def _execute_to_end(self, placement: Placement) -> Execution:
        if placement.problem_hash != self.problem.hash:
            raise InputError(
                f"placement: made for problem {placement.problem_hash}, this is {self.problem.hash}"
            )
        execution = self._execute(placement.device, placement.priority)
        if not np.isfinite(execution.makespan_s):
            raise InputError("placement: never finishes: its strict order waits for itself")
        return execution

    def _peak_bytes(self, execution: Execution) -> NDArray[np.float64]:
        return peak_bytes(self.problem, execution.tasks, execution.start_s, execution.finish_s)

    def _execute(self, device_V: NDArray[np.int64], priority_V: NDArray[np.int64]) -> Execution:
        if not self.close.alive:
            raise ExecutionError("this session is closed; open another one")
        if self.execution.barriers:
            tasks = self._unroller.synchronous(device_V.tolist())
        else:
            tasks = self._unroller.work_conserving(
                device_V.tolist(),
                priority_V.tolist(),
                queue=self.execution.queue,
                sender=self.execution.contention == "sender",
            )
        if self._expected is not None:
            self._memory.wipe()
        known_as = device_V.tobytes() + priority_V.tobytes()
        execution = self._run(tasks, self._memory.actions(tasks), self._timeout_s, known_as)
        if self._expected is not None and np.isfinite(execution.makespan_s):
            self._verify(device_V)
        return execution

    def _run(
        self,
        tasks: Tasks,
        actions: Sequence[Any],
        timeout_s: float,
        known_as: bytes | None = None,
    ) -> Execution:
        """Execute tasks; ``known_as`` is the key of a placement that may be issued ahead."""
        if self._workers.is_lost:
            raise ExecutionError("a task of this session hangs: no other can be executed in it")
        collects = gc.isenabled()
        gc.disable()
        try:
            if self._ahead is not None and known_as is not None:
                times = self._ahead.run(known_as, tasks, actions, timeout_s)
                start_s, finish_s = map(np.array, times)
            else:
                dispatcher, begin = self._workers.run(
                    tasks,
                    actions,
                    fifo=self.execution.queue == "fifo",
                    sender_copies=False,  # on cores, transfers are tasks of the sending device
                    timeout_s=timeout_s,
                )
                start_s = np.array(dispatcher.start_s) - begin
                finish_s = np.array(dispatcher.finish_s) - begin
        except TaskError as failure:
            reason = reason_of(failure.__cause__)
            raise ExecutionError(f"{self._describe(tasks, failure.task)}: {reason}") from None
        except TaskTimeoutError as failure:
            self._workers.is_lost = True
            raise ExecutionError(
                f"{self._describe(tasks, failure.task)}: still runs after {timeout_s:g} s"
            ) from None
        except RuntimeError as error:  # a GPU that no longer works says so at any call
            raise ExecutionError(f"a device does not work: {reason_of(error)}") from None
        finally:
            if collects:
                gc.enable()
        return Execution(tasks=tasks, start_s=start_s, finish_s=finish_s)

    def _describe(self, tasks: Tasks, task: int) -> str:
        cluster, names = self.problem.cluster, self.problem.graph.ops.names
        if task < tasks.num_ops:
            device = cluster.devices[tasks.resource[task]].name
            return f"op {task} ({names[task]!r}) on device {device}"
        producer = int(self.problem.graph.regions.src[tasks.region[task - tasks.num_ops]])
        src, dst = (cluster.devices[d].name for d in tasks.channel(task))
        return f"transfer of op {producer} ({names[producer]!r}) from device {src} to {dst}"

    def _verify(self, device_V: NDArray[np.int64]) -> None:
        assert self._expected is not None
        check_results(self._memory.outputs(device_V.tolist()), self._expected)


def check_results(
    results: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]
) -> None:
    """Refuse results that differ from those of plain torch.

    Args:
        results: by name.
        reference: results of plain torch, by name.

    Raises:
        ExecutionError: names a result that differs by more than `TOLERANCE`.
    """
    for name, expected in reference.items():
        tolerance = TOLERANCE.get(expected.dtype, 1e-12)
        wide = torch.complex128 if expected.is_complex() else torch.float64
        result, expected = results[name].to(wide), expected.to(wide)
        # Infinite or NaN in both is equal.
        same = (result == expected) | (result.isnan() & expected.isnan())
        difference = (result - expected).abs().masked_fill(same, 0.0).max()
        scale = expected.abs().nan_to_num(0.0, 0.0, 0.0).max()
        if not difference <= tolerance * scale:  # nor if it is NaN
            raise ExecutionError(
                f"result {name!r}: differs from plain torch by up to {difference:.3g}, its "
                f"largest element is {scale:.3g}"
            )


def _close(workers: Workers, locks: Sequence[str]) -> None:
    workers.close()
    release(locks)


def reason_of(error: BaseException | None) -> str:
    """Say in one line why a task failed.

    Args:
        error: that it raised.
    """
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in text for sign in ("allocate memory", "_STATUS_ALLOC_FAILED")
    )
    return f"out of memory ({text})" if no_memory else text


def _each(total: float | None, before: float | None, num: int) -> float | None:
    """A total divided by executions; None if unknown."""
    return None if total is None or before is None else (total - before) / num
