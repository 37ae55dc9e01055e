"""A system for ops with alternatives: a placement chooses a column for each op.

A *column* is a pair of an alternative and a device, with the number alternative x D + device.
Columns take the place of devices in a problem of their own, so that every method that chooses
devices also chooses alternatives: list schedulers, clustering, annealing and policies. Only the
engine knows which columns are one device, that the ops of a group go to the device of its first op,
and that a device holds a backend only once in its memory.
Shape suffixes: V ops, D devices, K alternatives, C = K x D columns, B backends.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.extensions.programs.choices.system_kernels import simulate
from doppler.graph import DataflowGraph, GivenCosts, Ops
from doppler.problem import Placement, Problem, ProblemArrays, build
from doppler.simulator import SimulatorSession, WorkConserving
from doppler.simulator.state import State, make_state
from doppler.support.errors import InputError
from doppler.support.options import Amount, checked
from doppler.system import SystemKind
from doppler.trace import Contention, ExecutionRules, Queue, Trace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class PricedChoices:
    """A graph with alternatives on a cluster.

    Attributes:
        graph: with alternatives.
        cluster: that it is placed on.
        problem: the problem whose devices are the columns.
        loss: [V, C] of each column; inf where the op cannot run.
        fastest: the problem on the cluster with the fastest alternative of each op, which bounds
            every choice from below.
        backend: [V, K] number of the backend of each alternative; -1 where there is none.
        backend_bytes: [B] bytes that a backend takes on each device that runs it.
    """

    graph: DataflowGraph
    cluster: Cluster
    problem: Problem
    loss: FloatArray
    fastest: Problem
    backend: IntArray
    backend_bytes: FloatArray

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return self.cluster.num_devices

    def chosen(self, column_V: IntArray) -> tuple[IntArray, IntArray]:
        """Return the alternative and the device of each op [V].

        Args:
            column_V: column of each op. A group is on the device of its first op.
        """
        device_V = (column_V % self.num_devices)[self.fastest.arrays.group]
        return column_V // self.num_devices, device_V

    def total_loss(self, column_V: IntArray) -> float:
        """Return the sum of the losses of all ops.

        Args:
            column_V: column of each op.
        """
        alternative_V, device_V = self.chosen(column_V)
        taken_V = alternative_V * self.num_devices + device_V
        return float(self.loss[np.arange(len(column_V)), taken_V].sum())

    def as_placed(self, placement: Placement) -> tuple[Problem, Placement]:
        """Return the problem with only the chosen alternatives, and the placement in that problem.

        Backends are inputs of that problem, so that their memory counts.

        Args:
            placement: on columns.
        """
        every_V, arrays = np.arange(self.graph.num_ops), self.fastest.arrays
        alternative_V, device_V = self.chosen(placement.device)
        taken_V = alternative_V * self.num_devices + device_V
        seconds_VD = np.full_like(arrays.op_seconds, np.inf)
        seconds_VD[every_V, device_V] = self.problem.arrays.op_seconds[every_V, taken_V]
        backend_V = self.backend[every_V, alternative_V]
        users = [np.flatnonzero(backend_V == b) for b in range(len(self.backend_bytes))]
        ends = arrays.input_ptr[-1] + np.cumsum([len(each) for each in users], dtype=np.int64)
        arrays = arrays._replace(
            op_seconds=seconds_VD,
            input_bytes=np.append(arrays.input_bytes, self.backend_bytes),
            input_ptr=np.append(arrays.input_ptr, ends).astype(arrays.input_ptr.dtype),
            input_consumers=np.concatenate([arrays.input_consumers, *users]).astype(
                arrays.input_consumers.dtype
            ),
        )
        problem = replace(self.fastest, arrays=arrays)
        return problem, Placement.make(problem, device_V, placement.priority)


def make_choices(graph: DataflowGraph, cluster: Cluster) -> PricedChoices:
    """Price all alternatives of a graph on a cluster.

    Args:
        graph: with alternatives.
        cluster: to place it on.

    Raises:
        InputError: the graph has no alternatives; or as `build`.
    """
    ops, where = graph.ops, f"graph {graph.name!r}"
    if not any(ops.alternatives):
        raise InputError(f"{where}: no op has alternatives")
    fast, num = build(graph, cluster), cluster.num_devices
    most = max(1, *(len(each) for each in ops.alternatives))
    seconds_VKD = np.full((graph.num_ops, most, num), np.inf)
    loss_VKD = np.full((graph.num_ops, most, num), np.inf)
    for v, each in enumerate(ops.alternatives):
        if not each:
            seconds_VKD[v, 0] = fast.arrays.op_seconds[v]
            loss_VKD[v, 0] = 0.0
        for k, one in enumerate(each):
            seconds_VKD[v, k] = one.on(num, f"{where}: op {v}")
            loss_VKD[v, k] = one.loss
    barred_VD = np.isinf(fast.arrays.op_seconds)  # includes pins and groups
    seconds_VKD[np.broadcast_to(barred_VD[:, None], seconds_VKD.shape)] = np.inf
    loss_VKD[~np.isfinite(seconds_VKD)] = np.inf
    given, none_V = graph.given_costs, np.full_like(ops.pinned, -1)
    backend_VK, bytes_B = _backends_of(ops, most)
    columns = replace(
        graph,
        ops=replace(ops, alternatives=(), pinned=none_V, group=none_V),
        given_costs=GivenCosts.make(
            op_seconds=seconds_VKD.reshape(graph.num_ops, -1),
            transfer_seconds=None if given is None else given.transfer_seconds,
            kinds=() if given is None else given.kinds,
            counts_memory=True if given is None else given.counts_memory,
        ),
    )
    return PricedChoices(
        graph=graph,
        cluster=cluster,
        problem=build(columns, _columns_of(cluster, most)),
        loss=loss_VKD.reshape(graph.num_ops, -1),
        fastest=fast,
        backend=backend_VK,
        backend_bytes=bytes_B,
    )


def _backends_of(ops: Ops, most: int) -> tuple[IntArray, FloatArray]:
    """Return the number of each alternative's backend [V, K], or -1, and backends' bytes [B]."""
    bytes_of = {one.backend: one.memory_bytes for each in ops.alternatives for one in each}
    number = {name: b for b, name in enumerate(bytes_of)}
    backend_VK = np.full((len(ops), most), -1)
    for v, each in enumerate(ops.alternatives):
        backend_VK[v, : len(each)] = [number[one.backend] for one in each]
    return backend_VK, np.array(list(bytes_of.values()), dtype=np.float64)


def _columns_of(cluster: Cluster, most: int) -> Cluster:
    """Return a cluster with each device once per alternative; columns of one device share all data.

    Methods that plan on columns do not see that hosts share interfaces; the engine does.
    """
    num = cluster.num_devices
    bytes_per_s = np.tile(cluster.bytes_per_s, (most, most))
    latency_s = np.tile(cluster.latency_s, (most, most))
    same = np.tile(np.eye(num, dtype=bool), (most, most))
    bytes_per_s[same], latency_s[same] = np.inf, 0.0
    return Cluster(
        name=cluster.name,
        devices=tuple(
            replace(device, name=f"{device.name}/{k}") if k else device
            for k in range(most)
            for device in cluster.devices
        ),
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
    )


class ChoiceState(NamedTuple):
    """Buffers of an execution: those of the engine, and the problem with chosen alternatives."""

    inner: State
    arrays: ProblemArrays  # of the problem on devices, with op_seconds of the chosen columns
    device: IntArray  # [V]
    group: IntArray  # [V] first op of each op's group
    loss: FloatArray  # [V, C] times the price, seconds
    backend: IntArray  # [V, K]
    backend_bytes: FloatArray  # [B]
    is_held: NDArray[np.bool_]  # [D, B] whether a device holds a backend
    tasks: NDArray[np.void]  # those of ``inner``
    devices: NDArray[np.void]


@checked
@dataclass(frozen=True, kw_only=True)
class ChoosingSystem:
    """The work-conserving simulator for graphs with alternatives.

    It reports the makespan plus ``price`` times the loss of the chosen alternatives, in seconds.

    Attributes:
        choices: of the problem that is opened.
        price: seconds that a loss of 1 is worth.
        queue: see `WorkConserving`.
        contention: see `WorkConserving`.
    """

    choices: PricedChoices
    price: Amount = 0.0
    queue: Queue = "priority"
    contention: Contention = "fifo"
    streams: ClassVar[int] = 1
    name: ClassVar[str] = "choosing"
    kind: ClassVar[SystemKind] = "simulated"

    def with_noise(self, noise: float) -> Self:
        """Return this system: it has no jitter.

        Args:
            noise: unused.
        """
        return self

    def open(self, problem: Problem, *, num_threads: int | None = None) -> SimulatorSession:
        """Return a session for the problem of the choices.

        Args:
            problem: must be ``choices.problem``.
            num_threads: number of threads that simulate; all cores unless given.
        """
        assert problem is self.choices.problem, "the problem has other columns"
        return SimulatorSession(
            problem=problem,
            num_threads=num_threads,
            engine=simulate,
            execution=ExecutionRules(contention=self.contention, queue=self.queue),
            noise=0.0,
            make_state=self._state,
            tells_makespan=self.price == 0.0,
        )

    def _state(self, arrays: ProblemArrays) -> Any:
        choices = self.choices
        own = choices.fastest.arrays
        own = own._replace(op_seconds=own.op_seconds.copy())
        inner, loss = make_state(own), choices.loss
        able = np.isfinite(loss)
        priced = np.where(able, self.price * np.where(able, loss, 0.0), np.inf)
        num_ops = len(own.op_seconds)
        return ChoiceState(
            inner=inner,
            arrays=own,
            device=np.zeros(num_ops, np.int64),
            group=own.group,
            loss=np.ascontiguousarray(priced),
            backend=choices.backend,
            backend_bytes=choices.backend_bytes,
            is_held=np.zeros((choices.num_devices, len(choices.backend_bytes)), np.bool_),
            tasks=inner.tasks,
            devices=inner.devices,
        )

    def trace(self, placement: Placement) -> Trace:
        """Return all events of a placement, on the devices, with the chosen alternatives.

        Args:
            placement: on columns.
        """
        problem, placed = self.choices.as_placed(placement)
        system = WorkConserving(queue=self.queue, contention=self.contention)
        with system.open(problem) as session:
            return session.trace(placed)
