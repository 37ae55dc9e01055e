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
    """What `Session.measure` returns.

    seconds: [B, R] makespans; repeat r of every placement sees the same draw of jitter.
    peak_bytes: [B, D] largest memory in use per device, over the repeats.
    feasible: [B] no device ran out of memory and every op could run where it was placed.
    """

    seconds: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    feasible: NDArray[np.bool_]

    def cost_s(self) -> NDArray[np.float64]:
        """What an optimiser minimises [B]: the mean over repeats, inf where infeasible."""
        return np.where(self.feasible, self.seconds.mean(axis=1), np.inf)

    def memory_shortfall(self, memory_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far each placement is from fitting [B]: the sum of what its peaks lack, as shares.

        memory_bytes: [D]. 0 where all fits, and where nothing is known of peaks.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            share_BD = np.where(
                self.peak_bytes > memory_bytes, 1.0 - memory_bytes / self.peak_bytes, 0.0
            )
        return share_BD.sum(axis=1)


class Session(Protocol):
    """One problem on one system; buffers, threads and locks live here. A context manager.

    evaluations: executions so far, placements times repeats. honours_order: whether ready ops run
    by their priority. is_random: whether executing a placement twice can take different times.
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
        """Execute B placements ``repeats`` times each. Without priorities: topological order.

        rng is needed where the system draws random numbers (jitter, random queues).
        """
        ...

    def trace(self, placement: Placement) -> Trace:
        """Execute one placement without jitter and return all its events."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class System(Protocol):
    """What can execute placements."""

    @property
    def name(self) -> str:
        """What the system is called in tables."""
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
        """Ops that a device runs at a time."""
        ...

    def open(self, problem: Problem) -> Session:
        """A session for one problem."""
        ...

    def with_noise(self, noise: float) -> Self:
        """The same system, seconds of ops and transfers times factors of this deviation.

        noise: standard deviation of the logarithm; 0: none. A measured system has noise of its own,
        which cannot be chosen: it is returned as it is.
        """
        ...


class MemoryMode(Protocol):
    """What is done with placements that do not fit into the memory of their devices."""

    def applied(self, system: Any) -> Any:
        """The system with it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """A placement that does not fit is infeasible."""

    def applied(self, system: Any) -> Any:
        """The system as it is."""
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
    """Tell all listeners which agents have started."""
    for listener in _listeners:
        listener(agents)


def honours_order(queue: str) -> bool:
    """Whether ready ops run by their priority where ``queue`` says which goes first."""
    return queue in ("priority", "strict")


def measure_placements(
    session: Session, placements: Sequence[Placement], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Cost in seconds of each placement, executed once each, in one batch."""
    device_BV = np.stack([placement.device for placement in placements])
    priority_BV = np.stack([placement.priority for placement in placements])
    return session.measure(device_BV, priority_BV, rng=rng).cost_s()


def check_hosts(system: object, problem: Problem) -> None:
    """Refuse a machine that a system cannot run a problem on, before anything has begun.

    system: its ``one_host`` says why it knows of one host only, its ``check`` raises what else is
    wrong; those that have none know hosts, and all machines.

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
