"""Simulated systems: the rules of an engine, and its batches over all cores.

Shape suffixes: B placements, R repeats, V ops, D devices.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement, Problem, ProblemArrays, topological_priority
from doppler.simulator import (
    bulk_synchronous_kernels,
    published_kernels,
    sharing_kernels,
    work_conserving_kernels,
)
from doppler.simulator.published_instants_kernels import COSTS_PER_SECOND
from doppler.simulator.resuming import Known, make_known
from doppler.simulator.session_kernels import measure_batch
from doppler.simulator.sharing import make_sharing_state
from doppler.simulator.state import (
    CONTENTION_ENGINES,
    CONTENTION_FIFO,
    CONTENTION_NONE,
    CONTENTION_SENDER,
    QUEUE_FIFO,
    QUEUE_PRIORITY,
    QUEUE_RANDOM,
    QUEUE_STRICT,
    Rules,
    State,
    make_state,
)
from doppler.support.compute.threads import num_threads as threads_of_process
from doppler.support.errors import InputError
from doppler.support.options import Rule, checked, within
from doppler.system import Measurement, SystemKind, check_hosts, honours_order
from doppler.trace import Contention, ExecutionRules, Queue, Trace

QUEUES = {
    "fifo": QUEUE_FIFO,
    "priority": QUEUE_PRIORITY,
    "random": QUEUE_RANDOM,
    "strict": QUEUE_STRICT,
}
CONTENTIONS = {
    "none": CONTENTION_NONE,
    "fifo": CONTENTION_FIFO,
    "engines": CONTENTION_ENGINES,
    "sender": CONTENTION_SENDER,
}
MAX_STREAMS = 60
_Streams = Annotated[int, within(1, MAX_STREAMS)]
_Noise = Annotated[float, Rule("a number of at least 0 and below 10", lambda x: 0 <= x < 10)]
# Largest share of the times of a problem that the published simulator may lose to rounding.
_MOST_ROUNDED = 0.01
# A batch with fewer ops ends before a second thread could start.
_WORTH_A_THREAD = 2_000


@checked
@dataclass(frozen=True, kw_only=True)
class WorkConserving:
    """The work-conserving simulator: no barriers, and nothing is idle while work for it is ready.

    Attributes:
        queue: which ready task goes first.
        contention: how transfers wait for links. ``sender``: devices make transfers themselves, as
            cores do. ``shared``: transfers wait as with ``sender`` where devices are cores and as
            with ``fifo`` elsewhere; ops and transfers that run at the same time slow each other
            down on what the cluster shares (`cluster.SharedResource`), at max-min fair rates.
        streams: number of ops that a device runs at a time.
        noise: standard deviation of the logarithm of a factor with mean 1 on the seconds of every
            op and transfer.
    """

    queue: Queue = "priority"
    contention: Literal["none", "fifo", "engines", "sender", "shared"] = "fifo"
    streams: _Streams = 1
    noise: _Noise = 0.0
    name: ClassVar[str] = "work_conserving"
    kind: ClassVar[SystemKind] = "simulated"

    def __post_init__(self) -> None:
        if self.contention == "sender" and self.streams > 1:
            raise InputError(
                f"streams: {self.streams}, but with contention=sender a device makes its own "
                "transfers and runs one task at a time"
            )

    def check(self, problem: Problem) -> None:
        """Refuse machines on which the contention rule makes no sense.

        Raises:
            InputError: several hosts although devices make transfers themselves; or, with
                ``contention=shared``, no shared resources, or several streams of a core.
        """
        if self.contention == "sender" and problem.cluster.num_hosts > 1:
            raise InputError(
                f"cluster {problem.cluster.name!r}: has {problem.cluster.num_hosts} hosts, and "
                "cores of one host send by themselves (contention=sender); use contention=fifo"
            )
        if self.contention != "shared":
            return
        if not problem.cluster.shared:
            raise InputError(
                f"cluster {problem.cluster.name!r}: declares no shared resources "
                "(cluster.shared), as contention=shared needs; use contention=fifo"
            )
        if self.streams > 1 and self._waiting(problem) == "sender":
            raise InputError(
                f"streams: {self.streams}, a core sends by itself and runs one task at a time"
            )

    @property
    def shares(self) -> bool:
        """Whether tasks on shared resources of the machine slow each other down."""
        return self.contention == "shared"

    def _waiting(self, problem: Problem) -> Contention:
        """What transfers wait for."""
        if self.contention != "shared":
            return self.contention
        cluster = problem.cluster
        return "sender" if cluster.cores and cluster.num_hosts == 1 else "fifo"

    def with_noise(self, noise: float) -> Self:
        return replace(self, noise=noise)

    def open(self, problem: Problem, *, num_threads: int | None = None) -> "SimulatorSession":
        """Open a session for one problem; its batches use all cores, or ``num_threads``."""
        check_hosts(self, problem)
        execution = ExecutionRules(
            streams=self.streams,
            contention=self._waiting(problem),
            queue=self.queue,
            shared=self.contention == "shared",
        )
        engine, buffers = work_conserving_kernels.simulate, make_state
        if execution.shared:
            assert problem.sharing is not None, "checked"
            engine = sharing_kernels.simulate
            buffers = partial(make_sharing_state, sharing=problem.sharing)
        return SimulatorSession(
            problem=problem,
            num_threads=num_threads,
            engine=engine,
            execution=execution,
            noise=self.noise,
            make_state=buffers,
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Published:
    """The paper's released simulator: no contention, and its order of simultaneous events.

    It ignores memory (peak_bytes are NaN, nothing is infeasible for lack of memory) and hosts. It
    counts time in whole costs of 1e-10 s.

    Attributes:
        queue: fifo as released, or ``priority``.
        streams: number of ops that a device runs at a time.
        noise: as in `WorkConserving`.
    """

    queue: Literal["fifo", "priority"] = "fifo"
    streams: _Streams = 1
    noise: _Noise = 0.0
    name: ClassVar[str] = "published"
    one_host: ClassVar[str] = "the published simulator knows no network interfaces"
    kind: ClassVar[SystemKind] = "simulated"

    def check(self, problem: Problem) -> None:
        """Refuse problems whose times are too short to be counted in whole costs.

        Raises:
            InputError: says what is too short.
        """
        p = problem.arrays
        op_costs = p.op_seconds[np.isfinite(p.op_seconds)] * COSTS_PER_SECOND
        transfer_costs = problem.mean_transfer_seconds * COSTS_PER_SECOND
        for what, costs, total in (
            ("ops", op_costs, op_costs.sum()),
            ("transfers", transfer_costs, op_costs.sum() + transfer_costs.sum()),
        ):
            if np.abs(np.rint(costs) - costs).sum() > _MOST_ROUNDED * total:
                raise InputError(
                    f"graph {problem.graph.name!r}: {what} take {costs.mean():.2g} x 1e-10 s on "
                    "average, and system=published rounds all times to whole 1e-10 s; use "
                    "system=work_conserving"
                )

    def with_noise(self, noise: float) -> Self:
        return replace(self, noise=noise)

    def open(self, problem: Problem, *, num_threads: int | None = None) -> "SimulatorSession":
        """Open a session for one problem; its batches use all cores, or ``num_threads``."""
        check_hosts(self, problem)
        return SimulatorSession(
            problem=problem,
            num_threads=num_threads,
            engine=published_kernels.simulate,
            complete=published_kernels.complete,
            counts_memory=False,
            execution=ExecutionRules(streams=self.streams, contention="none", queue=self.queue),
            noise=self.noise,
        )


@checked
@dataclass(frozen=True, kw_only=True)
class BulkSynchronous:
    """The bulk-synchronous simulator: level by level, with an exchange and a barrier before each.

    A device runs one op at a time; priorities are not used. All devices must be on one host.

    Attributes:
        noise: as in `WorkConserving`.
    """

    noise: _Noise = 0.0
    name: ClassVar[str] = "bulk_synchronous"
    one_host: ClassVar[str] = "the bulk-synchronous system knows no network interfaces"
    kind: ClassVar[SystemKind] = "simulated"
    queue: ClassVar[Queue] = "fifo"
    streams: ClassVar[int] = 1

    def with_noise(self, noise: float) -> Self:
        return replace(self, noise=noise)

    def open(self, problem: Problem, *, num_threads: int | None = None) -> "SimulatorSession":
        """Open a session for one problem; its batches use all cores, or ``num_threads``."""
        check_hosts(self, problem)
        return SimulatorSession(
            problem=problem,
            num_threads=num_threads,
            engine=bulk_synchronous_kernels.simulate,
            execution=ExecutionRules(contention="engines", queue="fifo", barriers=True),
            noise=self.noise,
        )


def _own(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A contiguous, writable copy: an array of any other kind would compile the engine anew."""
    return np.array(rows, dtype=np.int64, order="C")


class SimulatorSession:
    """A problem in a simulator: one set of buffers per core, used in parallel without the GIL.

    A compiled search can simulate by itself, without Python at every evaluation. It calls
    ``engine(problem.arrays, rules, device_V, priority_V, seed, state)`` for the makespan, with a
    state from `in_parallel`, and adds the evaluations that it used to ``evaluations``.

    Attributes:
        engine: a compiled function that returns seconds.
        rules: of the simulated system.
        counts_memory: whether the engine leaves peaks in ``state.devices``.
        tells_makespan: whether the engine returns the end of the last op, not an adjusted cost.
        plans_memory: whether placements that do not fit are planned instead of refused.
    """

    plans_memory: ClassVar[bool] = False

    def __init__(
        self,
        *,
        problem: Problem,
        engine: Callable,
        complete: Callable | None = None,
        counts_memory: bool = True,
        execution: ExecutionRules,
        noise: float,
        num_threads: int | None = None,
        make_state: Callable[[ProblemArrays], Any] = make_state,
        tells_makespan: bool = True,
    ) -> None:
        self.problem = problem
        self.evaluations = 0
        self.execution = execution
        self.honours_order = honours_order(execution.queue)
        self.is_random = noise > 0 or execution.queue == "random"
        self.rules = Rules(
            queue=QUEUES[execution.queue],
            contention=CONTENTIONS[execution.contention],
            streams=execution.streams,
            op_noise=float(noise),
            transfer_noise=float(noise),
        )
        self.engine = engine
        self.counts_memory = counts_memory
        self.tells_makespan = tells_makespan
        self._complete = complete
        self._num_threads = num_threads or threads_of_process()
        self._make_state = make_state
        self._states = [make_state(problem.arrays)]
        self._pool: ThreadPoolExecutor | None = None
        self._topological = topological_priority(problem)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without threads."""
        return {**vars(self), "_pool": None, "_num_threads": 1}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        """Simulate; see system.Session. Without noise all repeats are one simulation."""
        device_BV = _own(device_BV)
        num, num_ops = device_BV.shape
        num_devices = self.problem.num_devices
        assert num_ops == self.problem.num_ops
        assert num == 0 or (device_BV.min() >= 0 and device_BV.max() < num_devices)
        if priority_BV is None:
            priority_BV = np.broadcast_to(self._topological, device_BV.shape)
        priority_BV = _own(priority_BV)
        assert priority_BV.shape == device_BV.shape
        if self.execution.queue == "strict":
            ranking = np.sort(priority_BV, axis=1) == np.arange(num_ops)
            assert ranking.all(), "strict order needs rankings"
        if self.is_random and rng is None:
            raise ValueError("a system that draws random numbers needs rng")
        draws = repeats if self.is_random else 1
        seeds_R = np.zeros(1, dtype=np.int64)
        if self.is_random and rng is not None:
            seeds_R = rng.integers(0, 2**62, size=draws)
        seconds_BR = np.empty((num, draws))
        peak_BD = np.zeros((num, num_devices))
        self._run(device_BV, priority_BV, seeds_R, seconds_BR, peak_BD)
        if self.problem.has_groups:  # an op on a device that may not run it takes inf by itself
            seconds_BR[~self.problem.allows(device_BV)] = np.inf
        self.evaluations += num * repeats
        if not self.counts_memory:
            peak_BD[:] = np.nan
        fits_B = ~(peak_BD > self.problem.arrays.memory_bytes).any(axis=1)
        return Measurement(
            seconds=np.repeat(seconds_BR, repeats // draws, axis=1),
            peak_bytes=peak_BD,
            feasible=fits_B & np.asarray(np.isfinite(seconds_BR).all(axis=1)),
        )

    def _run(self, device_BV, priority_BV, seeds_R, seconds_BR, peak_BD) -> None:
        num = len(device_BV)
        work = device_BV.size * len(seeds_R)
        threads = max(1, min(self._num_threads, num, work // _WORTH_A_THREAD))

        def part(i: int, state: State) -> None:
            rows = slice(num * i // threads, num * (i + 1) // threads)
            measure_batch(
                self.engine,
                self.problem.arrays,
                self.rules,
                device_BV[rows],
                priority_BV[rows],
                seeds_R,
                state,
                seconds_BR[rows],
                peak_BD[rows],
            )

        self.in_parallel(part, threads)

    def in_parallel(self, function: Callable[[int, State], None], num: int) -> None:
        """Call ``function(i, state)`` for every i < num, with a separate state for each thread.

        It uses the session's threads; compiled code does not hold the GIL.

        Args:
            function: to call.
            num: of calls.
        """
        while len(self._states) < num:
            self._states.append(self._make_state(self.problem.arrays))
        if num == 1:
            function(0, self._states[0])
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "simulator")
        list(self._pool.map(function, range(num), self._states))

    def make_known(self) -> Known | None:
        """Allocate buffers in which a search keeps a schedule to resume from; None if unsupported.

        They are used only if two executions never differ.
        """
        if self.engine is not work_conserving_kernels.simulate:
            return None
        in_use = self.rules.queue in (QUEUE_FIFO, QUEUE_PRIORITY) and not self.is_random
        return make_known(self.problem.arrays, self._states[0], in_use=in_use)

    def trace(self, placement: Placement) -> Trace:
        """Simulate one placement without jitter (see `system.Session`).

        Raises:
            InputError: the placement is for another problem, or its strict order has a circle.
        """
        if placement.problem_hash != self.problem.hash:
            raise InputError(
                f"placement: made for problem {placement.problem_hash}, this is {self.problem.hash}"
            )
        seconds_BR = np.empty((1, 1))
        peak_BD = np.zeros((1, self.problem.num_devices))
        arrays, state = self.problem.arrays, self._states[0]
        device_BV, priority_BV = _own(placement.device[None]), _own(placement.priority[None])
        measure_batch(
            self.engine,
            arrays,
            self.rules._replace(op_noise=0.0, transfer_noise=0.0),
            device_BV,
            priority_BV,
            np.zeros(1, dtype=np.int64),
            state,
            seconds_BR,
            peak_BD,
        )
        if not np.isfinite(seconds_BR[0, 0]):
            raise InputError("placement: never finishes: its strict order waits for itself")
        if self._complete is not None:
            self._complete(arrays, device_BV[0], priority_BV[0], state)
        if not self.counts_memory:
            peak_BD[:] = np.nan
        return self._read_trace(state, placement, peak_BD[0])

    def _read_trace(self, state: State, placement: Placement, peak_D: NDArray) -> Trace:
        num_ops = self.problem.num_ops
        num_tasks = num_ops + int(state.num_transfers[0])
        ops, transfers = state.tasks[:num_ops].copy(), state.tasks[num_ops:num_tasks].copy()
        src_T, dst_T = (transfers[end].astype(np.int64) for end in ("source", "destination"))
        crosses_T = self.problem.cluster.between_hosts[src_T, dst_T]
        crosses_T &= self.execution.contention != "none"
        return Trace(
            problem=self.problem,
            placement=placement,
            system_kind="simulated",
            rules=self.execution,
            op_stream=ops["stream"].astype(np.int64),
            op_start_s=ops["start"],
            op_finish_s=ops["finish"],
            transfer_region=transfers["number"].astype(np.int64),
            transfer_src=src_T,
            transfer_dst=dst_T,
            transfer_start_s=transfers["start"],
            transfer_finish_s=transfers["finish"],
            peak_bytes=peak_D,
            transfer_outlet=np.where(crosses_T, transfers["stream"].astype(np.int64), -1),
            transfer_inlet=np.where(crosses_T, transfers["inlet"].astype(np.int64), -1),
        )
