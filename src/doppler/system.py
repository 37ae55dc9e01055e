"""The protocol that the simulator and the executor share: open a problem, measure placements.

Shape suffixes: B placements, R repeats, V ops, D devices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement, Problem
from doppler.support.errors import InputError
from doppler.trace import Trace

SystemKind = Literal["simulated", "measured"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement:
    """Seconds and memory of measured placements: what `Session.measure` returns.

    Attributes:
        seconds: [B, R] makespans. Repeat r of every placement sees the same draw of jitter.
        peak_bytes: [B, D] largest memory in use on each device, over the repeats.
        feasible: [B] whether no device ran out of memory and every op could run on its device.
    """

    seconds: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    feasible: NDArray[np.bool_]

    def cost_s(self) -> NDArray[np.float64]:
        """Return what an optimiser minimises [B]: the mean over repeats, inf if infeasible."""
        return np.where(self.feasible, self.seconds.mean(axis=1), np.inf)

    def memory_shortfall(self, memory_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far each placement is from fitting [B], as a sum of shares of its peaks.

        Args:
            memory_bytes: [D] memory of each device.

        Returns:
            0 if everything fits or peaks are unknown.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            share_BD = np.where(
                self.peak_bytes > memory_bytes, 1.0 - memory_bytes / self.peak_bytes, 0.0
            )
        return share_BD.sum(axis=1)


class Session(Protocol):
    """One problem on one system: a context manager that owns buffers, threads and locks.

    Attributes:
        problem: what is placed.
        evaluations: executions so far, placements times repeats.
        honours_order: whether ready ops run by their priority.
        is_random: whether two executions of one placement can take different times.
    """

    problem: Problem
    evaluations: int
    honours_order: bool
    is_random: bool

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        """Execute B placements, ``repeats`` times each.

        Args:
            device_BV: device of each op.
            priority_BV: rank of each op, 0 first; topological order by default.
            repeats: executions of each placement.
            rng: needed if the system draws random numbers (jitter, random queues).
        """
        ...

    def trace(self, placement: Placement) -> Trace:
        """Execute one placement without jitter and return all its events."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class System(Protocol):
    """Something that executes placements: a simulator or an executor."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def kind(self) -> SystemKind:
        """Whether its seconds are simulated or measured."""
        ...

    @property
    def queue(self) -> str:
        """Which ready task goes first: priority, fifo, random or strict."""
        ...

    @property
    def streams(self) -> int:
        """Number of ops that a device runs at a time."""
        ...

    def open(self, problem: Problem) -> Session:
        """Open a session for one problem."""
        ...

    def with_noise(self, noise: float) -> Self:
        """Return the same system with jitter on all ops and transfers.

        Args:
            noise: standard deviation of the logarithm of a random factor; 0: none. A measured
                system returns itself, because its noise cannot be chosen.
        """
        ...


class MemoryMode(Protocol):
    """How placements are treated that do not fit into the memory of their devices."""

    def applied(self, system: Any) -> Any:
        """Return the system with this memory mode."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """The memory mode in which a placement that does not fit is infeasible."""

    def applied(self, system: Any) -> Any:
        """Return the system unchanged."""
        return system


AgentsListener = Callable[[list[dict[str, Any]]], None]
_listeners: list[AgentsListener] = []


@contextmanager
def listening_to_agents(listener: AgentsListener) -> Iterator[None]:
    """Call the listener whenever a system starts agents in other processes.

    Args:
        listener: gets one dictionary for each agent, with its rank, host and pid.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def announce_agents(agents: list[dict[str, Any]]) -> None:
    """Tell all listeners which agents have started.

    Args:
        agents: rank, host and pid of each.
    """
    for listener in _listeners:
        listener(agents)


def honours_order(queue: str) -> bool:
    """Whether a queue runs ready ops by their priority.

    Args:
        queue: of a system.
    """
    return queue in ("priority", "strict")


def measure_placements(
    session: Session, placements: Sequence[Placement], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Execute placements once each, in one batch, and return their cost in seconds.

    Args:
        session: of the system.
        placements: to execute.
        rng: draws jitter.
    """
    device_BV = np.stack([placement.device for placement in placements])
    priority_BV = np.stack([placement.priority for placement in placements])
    return session.measure(device_BV, priority_BV, rng=rng).cost_s()


def check_hosts(system: object, problem: Problem) -> None:
    """Refuse a machine that a system cannot run a problem on, before anything has begun.

    A system may have ``one_host``, the reason why it knows only one host, and ``check``, which
    raises for other problems. A system with neither accepts all machines.

    Args:
        system: that shall execute.
        problem: to execute.

    Raises:
        InputError: names the cluster.
    """
    why, cluster = getattr(system, "one_host", None), problem.cluster
    if why is not None and cluster.num_hosts > 1:
        raise InputError(
            f"cluster {cluster.name!r}: has {cluster.num_hosts} hosts, and {why}; use "
            "system=work_conserving, or cluster.hosts=1"
        )
    if (check := getattr(system, "check", None)) is not None:
        check(problem)
