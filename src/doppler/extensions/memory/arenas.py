"""Executes plans on cores of this machine: data lie at the planned addresses, threads copy them.

Each device has an arena, a block of memory no larger than its limit. Everything that its ops read
and write lies there, at the planned address. One more arena is the memory of the host, with a place
for each datum that is ever evicted; inputs are loaded from the caller's tensors. Outside of the
arenas are the temporary tensors of kernels and the program's results, which are copied out as they
are computed. Shape suffixes: B placements, R repeats, V ops, D devices, K tasks.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor import (
    ExecutionError,
    Outputs,
    Threads,
    assemble,
    check_executable,
    compile_kernel,
    cut,
    input_blocks,
    random_inputs,
    run_graph,
)
from doppler.executor.devices import Cores
from doppler.executor.elementwise import TORCH_DTYPES
from doppler.executor.locks import acquire, release
from doppler.executor.memory import region_boxes
from doppler.executor.session import check_results
from doppler.executor.tasks import NOWHERE, Tasks
from doppler.executor.workers import TaskError, TaskTimeoutError, Workers
from doppler.extensions.memory.arrays import EVICT, FREE, LOAD, MOVE, OP
from doppler.extensions.memory.events import make_trace
from doppler.extensions.memory.plans import MemoryPlan
from doppler.graph.reads import box_shape, regions_of_reads
from doppler.problem import Placement, Problem, topological_priority
from doppler.system import Measurement, SystemKind, honours_order
from doppler.trace import ExecutionRules, Trace

# Addresses are multiples of this, so that elements of all dtypes and cache lines are aligned.
ALIGNMENT = 64


def aligned(problem: Problem) -> Problem:
    """Return the problem with sizes and limits in multiples of `ALIGNMENT`, to plan real memory.

    Args:
        problem: whose sizes are rounded up, and whose limits are rounded down.
    """
    p = problem.arrays

    def up(size: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.ceil(size / ALIGNMENT) * ALIGNMENT

    return replace(
        problem,
        arrays=p._replace(
            region_bytes=up(p.region_bytes),
            sink_bytes=up(p.sink_bytes),
            input_bytes=up(p.input_bytes),
            memory_bytes=np.floor(p.memory_bytes / ALIGNMENT) * ALIGNMENT,
        ),
    )


class Arenas:
    """The memory of a plan's execution, and the actions of its tasks on it.

    Args:
        plan: to execute.
        inputs: of the program, by name.

    Attributes:
        sizes: bytes of each device's arena.
        outputs: results of the program.
        actions: a function for each task, which executes it.
    """

    def __init__(self, plan: MemoryPlan, inputs: Mapping[str, torch.Tensor]) -> None:
        graph, copies = plan.problem.graph, plan.copies
        self._plan, self._graph = plan, graph
        self.sizes = [math.ceil(size) for size in plan.reserved_bytes]
        self._arenas = [torch.empty(size, dtype=torch.uint8) for size in self.sizes]
        self._blocks = input_blocks(graph, inputs)
        self._boxes = region_boxes(graph)
        self._regions = regions_of_reads(graph)
        self._host: dict[tuple[int, int, int], torch.Tensor] = {}
        self.outputs = Outputs(graph)
        self._views = [self._view(c) for c in range(len(copies))]
        self._used: dict[int, dict[tuple[bool, int], int]] = {}
        for c, task in plan.uses.tolist():
            is_input = bool(copies.input[c] >= 0)
            number = int(copies.input[c] if is_input else copies.region[c])
            self._used.setdefault(task, {})[is_input, number] = c
        self.actions: list[Callable[[], Any]] = [self._action(k) for k in range(plan.num_tasks)]

    def fill(self) -> None:
        """Write the inputs that are there from the start."""
        copies = self._plan.copies
        used = set(self._plan.uses[:, 0].tolist())
        for c in np.flatnonzero(copies.creator < 0).tolist():
            if not copies.gone[c] or c in used:
                self._views[c].copy_(self._blocks[copies.input[c]])

    def wipe(self) -> None:
        """Overwrite everything, so that an execution finds only data that it has computed."""
        for arena in [*self._arenas, *self._host.values()]:
            arena.reshape(-1).view(torch.uint8).fill_(0xFF)

    def _kind(self, c: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and dtype of a copy."""
        copies, graph = self._plan.copies, self._graph
        region, number, output = (int(x[c]) for x in (copies.region, copies.input, copies.output))
        if number >= 0:
            block = self._blocks[number]
            return tuple(block.shape), block.dtype
        op = output if output >= 0 else int(graph.regions.src[region])
        kernel = graph.ops.kernels[op]
        assert kernel is not None
        shape = kernel.output_shape if output >= 0 else box_shape(self._boxes[region])
        return tuple(shape), TORCH_DTYPES[kernel.dtype]

    def _view(self, c: int) -> torch.Tensor:
        """Return a copy as a tensor at its address."""
        shape, dtype = self._kind(c)
        copies = self._plan.copies
        arena, address = self._arenas[copies.device[c]], int(copies.address[c])
        return _placed(arena, address, int(copies.bytes[c]), shape, dtype)

    def _on_host(self, c: int) -> torch.Tensor:
        """Return the tensor that holds a copy's data on the host: for an input the caller's."""
        copies = self._plan.copies
        if copies.input[c] >= 0:
            return self._blocks[copies.input[c]]
        key = (int(copies.region[c]), int(copies.output[c]), int(copies.device[c]))
        if key not in self._host:
            self._host[key] = torch.empty_like(self._views[c])
        return self._host[key]

    def _action(self, k: int) -> Callable[[], Any]:
        plan, kind = self._plan, self._plan.kind[k]
        if kind == FREE:
            return _nothing
        if kind == MOVE:
            region = int(plan.copies.region[plan.made[k]])
            there, here = self._views[plan.made[k]], self._views[self._used[k][False, region]]
            return partial(there.copy_, here)
        if kind == EVICT:
            c = int(plan.moved[k])
            return partial(self._on_host(c).copy_, self._views[c])
        if kind == LOAD:
            c = int(plan.made[k])
            return partial(self._views[c].copy_, self._on_host(c))
        return partial(self._compute, k, self._prepare(k))

    def _prepare(self, k: int) -> Callable[[], torch.Tensor]:
        """Return a function that computes an op from the copies that it reads."""
        v, used = int(self._plan.op[k]), self._used.get(k, {})
        kernel, reads = self._graph.ops.kernels[v], self._graph.ops.reads[v]
        assert kernel is not None
        compute, pieces = compile_kernel(kernel), []
        for read, region in zip(reads, self._regions[v], strict=True):
            if read.from_input:
                pieces.append(cut(self._views[used[True, read.source]], read.box))
            else:
                pieces.append(self._views[used[False, region]])
        return lambda: compute(assemble(kernel, reads, pieces))

    def _compute(self, k: int, compute: Callable[[], torch.Tensor]) -> None:
        plan, result = self._plan, compute()
        first = int(plan.made[k])
        for c in range(first, first + int(plan.num_made[k])):
            region = int(plan.copies.region[c])
            self._views[c].copy_(result if region < 0 else cut(result, self._boxes[region]))
        if plan.kind[k] == OP:
            self.outputs.take(int(plan.op[k]), result)


def _placed(
    arena: torch.Tensor, address: int, size: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor in an arena."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0 or size == 0:
        return torch.empty(shape, dtype=dtype)
    assert num_bytes <= size, "a copy is larger than planned"
    return arena[address : address + num_bytes].view(dtype).view(shape)


def _nothing() -> None:
    pass


def tasks_of(plan: MemoryPlan) -> Tasks:
    """Return a plan as tasks for the dispatcher.

    Device D + d of these tasks is device d's part of the host's memory.

    Args:
        plan: to execute.
    """
    num, num_devices = len(plan.limit_bytes), 2 * len(plan.limit_bytes)
    tasks = Tasks(num_ops=plan.problem.num_ops, num_devices=num_devices)
    for k in range(plan.num_tasks):
        kind, d = plan.kind[k], int(plan.device[k])
        ends = {
            MOVE: (int(plan.source[k]), d),
            EVICT: (d, num + d),
            LOAD: (num + d, d),
        }.get(int(kind))
        resource = NOWHERE if kind == FREE else d
        number = k
        if ends is not None:
            resource = num_devices + ends[0] * num_devices + ends[1]
        if kind == MOVE:
            number = int(plan.copies.region[plan.made[k]])
        tasks.add(resource, float(plan.key[k]), number)
    for one, other in plan.waits.tolist():
        tasks.wait(other, one)
    return tasks


class ArenaSession:
    """A session (`system.Session`) on cores, within memory limits."""

    def __init__(
        self,
        *,
        problem: Problem,
        planner: Any,
        queue: str,
        verify: bool,
        timeout_s: float,
        inputs: Mapping[str, torch.Tensor] | None,
    ) -> None:
        check_executable(problem.graph)
        self.problem, self.evaluations = problem, 0
        self.execution = ExecutionRules(queue=queue)  # pyright: ignore[reportArgumentType]
        self.honours_order, self.is_random = honours_order(queue), True
        self._inputs = inputs or random_inputs(problem.graph, np.random.default_rng(0))
        self._expected = run_graph(problem.graph, self._inputs) if verify else None
        self._planner, self._timeout_s = planner, timeout_s
        self._topological = topological_priority(problem)
        self._workers, self._locks = Workers(), Cores(problem.num_devices).locks
        acquire(self._locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and release the cores."""
        self._workers.close()
        release(self._locks)

    def plan(self, placement: Placement) -> MemoryPlan:
        """Return the plan of a placement; sizes are rounded up to `ALIGNMENT`.

        Args:
            placement: of the session's problem.

        Raises:
            InputError: an op does not fit on its device; the message says how many bytes it needs.
        """
        whole = self._planner.problem
        return self._planner.plan(Placement.make(whole, placement.device, placement.priority))

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        """Plan and execute placements; one without a plan is not executed (see `system.Session`).

        Args:
            device_BV: device of each op.
            priority_BV: priority of each op, small first; a topological order unless given.
            repeats: executions of each placement.
            rng: unused.

        Raises:
            ExecutionError: an op or a copy failed, or hangs.
        """
        device_BV = np.asarray(device_BV, dtype=np.int64)
        if priority_BV is None:
            priority_BV = np.broadcast_to(self._topological, device_BV.shape)
        planned = self._planner.measure(device_BV, priority_BV)
        seconds_BR = np.full((len(device_BV), repeats), np.inf)
        peak_BD = planned.peak_bytes.copy()
        for b in np.flatnonzero(planned.feasible).tolist():
            placement = Placement.make(self.problem, device_BV[b], priority_BV[b])
            for r in range(repeats):
                trace = self.trace(placement)
                seconds_BR[b, r] = trace.makespan_s
                peak_BD[b] = (
                    trace.peak_bytes if r == 0 else np.maximum(peak_BD[b], trace.peak_bytes)
                )
        self.evaluations += len(device_BV) * repeats
        return Measurement(seconds=seconds_BR, peak_bytes=peak_BD, feasible=planned.feasible)

    def trace(self, placement: Placement) -> Trace:
        """Execute one placement and return all events (see `system.Session`).

        Args:
            placement: of the session's problem.

        Raises:
            InputError: an op does not fit on its device.
            ExecutionError: an op or a copy failed, or hangs.
        """
        return self._execute(placement)[0]

    def results(self, placement: Placement) -> dict[str, torch.Tensor]:
        """Execute one placement and return the results of the program, by name.

        Args:
            placement: of the session's problem.

        Raises:
            InputError: as in `trace`.
            ExecutionError: as in `trace`.
        """
        return self._execute(placement)[1]

    def _execute(self, placement: Placement) -> tuple[Trace, dict[str, torch.Tensor]]:
        plan = self.plan(placement)
        arenas = Arenas(plan, self._inputs)
        if self._expected is not None:
            arenas.wipe()
        arenas.fill()
        start_K, finish_K = self._run(plan, arenas)
        if self._expected is not None:
            check_results(arenas.outputs.tensors, self._expected)
        zeros = np.zeros(plan.num_tasks, np.int64)
        trace = make_trace(
            plan,
            start_K,
            finish_K,
            system_kind="measured",
            execution=self.execution,
            stream=zeros,
            inlet=zeros - 1,
        )
        return replace(trace, problem=self.problem, placement=placement), arenas.outputs.tensors

    def _run(self, plan: MemoryPlan, arenas: Arenas) -> tuple[NDArray, NDArray]:
        try:
            dispatcher, begin = self._workers.run(
                tasks_of(plan),
                arenas.actions,
                fifo=self.execution.queue == "fifo",
                sender_copies=False,
                timeout_s=self._timeout_s,
            )
        except TaskError as failure:
            reason = f"{type(failure.__cause__).__name__}: {failure.__cause__}".splitlines()[0]
            raise ExecutionError(f"{plan.describe(failure.task)}: {reason}") from None
        except TaskTimeoutError as failure:
            what = plan.describe(failure.task)
            raise ExecutionError(f"{what}: still runs after {self._timeout_s:g} s") from None
        return np.array(dispatcher.start_s) - begin, np.array(dispatcher.finish_s) - begin


class ThreadsWithPlans:
    """Cores of this machine that plan each placement and execute the plan in arenas.

    It has the attributes of `Threads` and ``memory``.

    Args:
        system: the cores, and how they execute.
        memory: how placements are planned.
        planning: a simulator that plans.
    """

    __slots__ = ("__dict__", "_planning")
    kind: ClassVar[SystemKind] = "measured"
    streams: ClassVar[int] = 1

    def __init__(self, system: Threads, memory: Any, planning: Any) -> None:
        self.__dict__.update(vars(system))
        self.memory = memory.name
        self._planning = planning

    @property
    def name(self) -> str:
        """Name of the system without plans."""
        return Threads.name

    @property
    def memory_mode(self) -> Any:
        """How placements are planned."""
        return self._planning.memory_mode

    def with_noise(self, noise: float) -> Self:
        """Return this system: measurements have noise of their own (see `system.System`).

        Args:
            noise: unused.
        """
        return self

    def open(
        self, problem: Problem, *, inputs: Mapping[str, torch.Tensor] | None = None
    ) -> ArenaSession:
        """Return a session for one problem (see `Threads.open`).

        Args:
            problem: to execute.
            inputs: of the program, by name; random unless given.
        """
        return ArenaSession(
            problem=problem,
            planner=self._planning.open(aligned(problem), num_threads=1),
            queue=vars(self)["queue"],
            verify=vars(self)["verify"],
            timeout_s=vars(self)["timeout_s"],
            inputs=inputs,
        )
