"""Ops with alternatives on a system: what is placed are pairs of alternative and device.

A *column* is such a pair, number alternative x D + device, and stands for a device of its own in a
problem of its own, so that whoever chooses devices chooses both: list schedulers, clusterings,
annealing, policies. The engine alone knows that columns of one device are one device. Shape
suffixes: V ops, D devices, K alternatives, C = K x D columns.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.compiled import compiled
from doppler.errors import InputError
from doppler.graph import DataflowGraph, GivenCosts
from doppler.options import Amount, checked
from doppler.problem import Placement, Problem, ProblemArrays, build
from doppler.simulator import SimulatorSession, WorkConserving, work_conserving
from doppler.simulator.state import State, make_state
from doppler.system import SystemKind
from doppler.trace import Contention, ExecutionRules, Queue, Trace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class PricedChoices:
    """A graph with alternatives on a cluster.

    graph: as it is. cluster: likewise. problem: its columns in place of devices. seconds: [V, C].
    loss: [V, C] of each column, inf where the op may not run there. fastest: the problem on the
    cluster, each op by what is fastest: what no choice of alternatives undercuts.
    """

    graph: DataflowGraph
    cluster: Cluster
    problem: Problem
    loss: FloatArray
    fastest: Problem

    @property
    def num_devices(self) -> int:
        """D."""
        return self.cluster.num_devices

    def chosen(self, column_V: IntArray) -> tuple[IntArray, IntArray]:
        """Alternative and device of each op [V]."""
        return column_V // self.num_devices, column_V % self.num_devices

    def total_loss(self, column_V: IntArray) -> float:
        """The sum over all ops."""
        return float(self.loss[np.arange(len(column_V)), column_V].sum())

    def as_placed(self, placement: Placement) -> tuple[Problem, Placement]:
        """The problem in which every op has the one alternative that was chosen, and the placement.

        Args:
            placement: of the columns' problem.
        """
        column_V, every_V = placement.device, np.arange(self.graph.num_ops)
        _, device_V = self.chosen(column_V)
        arrays = self.fastest.arrays
        seconds_VD = np.full_like(arrays.op_seconds, np.inf)
        seconds_VD[every_V, device_V] = self.problem.arrays.op_seconds[every_V, column_V]
        problem = replace(self.fastest, arrays=arrays._replace(op_seconds=seconds_VD))
        return problem, Placement.make(problem, device_V, placement.priority)


def make_choices(graph: DataflowGraph, cluster: Cluster) -> PricedChoices:
    """Price all alternatives of a graph on a cluster.

    Raises:
        InputError: a graph without alternatives, or with groups, which are not supported together;
            and as `build`.
    """
    ops, where = graph.ops, f"graph {graph.name!r}"
    if not any(ops.alternatives):
        raise InputError(f"{where}: no op has alternatives")
    if (ops.group >= 0).any():
        raise InputError(f"{where}: groups and alternatives do not go together")
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
    pinned_V = ops.pinned
    elsewhere_VD = (pinned_V >= 0)[:, None] & (pinned_V[:, None] != np.arange(num))
    seconds_VKD[np.broadcast_to(elsewhere_VD[:, None], seconds_VKD.shape)] = np.inf
    loss_VKD[~np.isfinite(seconds_VKD)] = np.inf
    given = graph.given_costs
    columns = replace(
        graph,
        ops=replace(ops, alternatives=(), pinned=np.full_like(pinned_V, -1)),
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
    )


def _columns_of(cluster: Cluster, most: int) -> Cluster:
    """Each device once per alternative; between columns of one device all is there at once.

    Who plans on columns does not see that hosts share interfaces; the engine does.
    """
    num = cluster.num_devices
    bytes_per_s = np.tile(cluster.bytes_per_s, (most, most))
    latency_s = np.tile(cluster.latency_s, (most, most))
    same = np.tile(np.eye(num, dtype=bool), (most, most))
    bytes_per_s[same], latency_s[same] = np.inf, 0.0
    return Cluster(
        name=cluster.name,
        devices=cluster.devices * most,
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
    )


class ChoiceState(NamedTuple):
    """Buffers of an execution: those of the engine, and the problem as it is chosen."""

    inner: State
    arrays: ProblemArrays  # of the devices; op_seconds are those of the chosen columns
    device: IntArray  # [V]
    loss: FloatArray  # [V, C] times its price
    tasks: NDArray[np.void]  # of the engine
    devices: NDArray[np.void]


@compiled
def simulate(p, rules, column_V, priority_V, seed, state):
    """Makespan in seconds, and what is lost at its price; see session.SimulatorSession."""
    num_devices, lost = state.arrays.op_seconds.shape[1], 0.0
    for v in range(len(column_V)):
        d = column_V[v] % num_devices
        state.device[v] = d
        state.arrays.op_seconds[v, d] = p.op_seconds[v, column_V[v]]
        lost += state.loss[v, column_V[v]]
    seconds = work_conserving.simulate(
        state.arrays, rules, state.device, priority_V, seed, state.inner
    )
    return seconds + lost


@checked
@dataclass(frozen=True, kw_only=True)
class ChoosingSystem:
    """The work-conserving simulator of a graph with alternatives.

    What it tells of a placement is its makespan plus ``price`` times the loss of all that was
    chosen, in seconds. choices: of the problem that is opened. queue, contention: see
    `WorkConserving`.
    """

    choices: PricedChoices
    price: Amount = 0.0
    queue: Queue = "priority"
    contention: Contention = "fifo"
    streams: ClassVar[int] = 1
    name: ClassVar[str] = "choosing"
    kind: ClassVar[SystemKind] = "simulated"

    def with_noise(self, noise: float) -> Self:
        """It knows no jitter."""
        return self

    def open(self, problem: Problem, *, num_threads: int | None = None) -> SimulatorSession:
        """A session for the choices' problem."""
        assert problem is self.choices.problem, "a problem of other columns"
        return SimulatorSession(
            problem=problem,
            num_threads=num_threads,
            engine=simulate,
            execution=ExecutionRules(contention=self.contention, queue=self.queue),
            noise=0.0,
            make_state=self._state,
        )

    def _state(self, arrays: ProblemArrays) -> Any:
        own = self.choices.fastest.arrays
        own = own._replace(op_seconds=own.op_seconds.copy())
        inner, loss = make_state(own), self.choices.loss
        able = np.isfinite(loss)
        priced = np.where(able, self.price * np.where(able, loss, 0.0), np.inf)
        num_ops = len(own.op_seconds)
        return ChoiceState(
            inner=inner,
            arrays=own,
            device=np.zeros(num_ops, np.int64),
            loss=np.ascontiguousarray(priced),
            tasks=inner.tasks,
            devices=inner.devices,
        )

    def trace(self, placement: Placement) -> Trace:
        """All events, on the devices, by the alternatives that were chosen."""
        problem, placed = self.choices.as_placed(placement)
        system = WorkConserving(queue=self.queue, contention=self.contention)
        with system.open(problem) as session:
            return session.trace(placed)
