"""What is done with placements that do not fit into memory: refused, or planned.

Shape suffixes: V ops, T transfers, D devices, K tasks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from doppler.executor import Threads
from doppler.extensions.memory.arenas import ThreadsWithPlans
from doppler.extensions.memory.arrays import (
    PlanChoices,
    PlanState,
    make_machine,
    make_plan_state,
    op_need_bytes,
)
from doppler.extensions.memory.events import planned_trace
from doppler.extensions.memory.orders_kernels import FINDS, FITS, FREES, OWN
from doppler.extensions.memory.plans import MemoryPlan, read_plan
from doppler.extensions.memory.running_kernels import make_plan, run_plan, simulate_plan
from doppler.extensions.memory.victims_kernels import VICTIMS
from doppler.problem import Placement, Problem
from doppler.simulator import SimulatorSession, WorkConserving
from doppler.support.errors import InputError
from doppler.support.options import Natural, checked, within
from doppler.system import SystemKind
from doppler.trace import Trace

# Of a try the order of ops, the share of the memory that is used, tasks ahead, and seconds that are
# waited rather than evicted, for each that evicting takes; the first is as it is said.
TRIES = (
    (OWN, 1.0, 0, 0.0),
    (FREES, 1.0, 0, 1.0),
    (FITS, 1.0, 0, 1.0),
    (FREES, 0.75, 16, 0.0),
    (OWN, 0.9, 0, 1.0),
    (FINDS, 1.0, 16, 0.0),
    (FITS, 1.0, 16, 0.0),
    (FITS, 0.9, 0, 1.0),
)


@checked
@dataclass(frozen=True, kw_only=True)
class Offload:
    """What does not fit is planned: evicted to the memory of the host, and loaded again.

    Attributes:
        victim: who is evicted: ``farthest`` next use, ``least_recent`` use, the ``cheapest`` to
            have away and back, or ``balanced`` between that and the time until the next use.
        ahead: so many tasks before its turn room is made for a task by eviction rather than by
            waiting.
        tries: plans of a placement (`TRIES`), until one takes hardly longer than without limits.
        recompute: what is cheaper computed again than copied is.
    """

    victim: Literal["farthest", "least_recent", "cheapest", "balanced"] = "farthest"
    ahead: Natural = 0
    tries: Annotated[int, within(1, len(TRIES))] = len(TRIES)
    recompute: bool = False

    @property
    def name(self) -> str:
        """As conf/memory has it."""
        return "offload_or_recompute" if self.recompute else "offload"

    def applied(self, system: Any) -> "SystemWithPlans | ThreadsWithPlans":
        """The system, which plans every placement before it runs it.

        Raises:
            InputError: a system that cannot run plans.
        """
        if isinstance(system, Threads):
            queue: Any = system.queue
            simulator = SystemWithPlans(WorkConserving(queue=queue), self)
            return ThreadsWithPlans(system, self, simulator)
        return SystemWithPlans(system, self)

    @property
    def choices(self) -> PlanChoices:
        """The same as numbers for compiled code."""
        tried = np.array(TRIES[: self.tries], dtype=np.float64)
        tried[0, 2] = self.ahead
        again = [np.insert(tried, 4, one, axis=1) for one in (1.0, 0.0) if one <= self.recompute]
        return PlanChoices(
            victim=VICTIMS[self.victim], recompute=self.recompute, tries=np.concatenate(again)
        )


MODES = {
    "offload": Offload(),
    "offload_or_recompute": Offload(recompute=True),
}


class SystemWithPlans:
    """A simulator that plans each placement, and runs the plan.

    Its attributes are those of the system, and ``memory``: so its rules are told apart in tables.

    Raises:
        InputError: the system cannot run plans.
    """

    __slots__ = ("__dict__", "_settings")
    kind: ClassVar[SystemKind] = "simulated"

    def __init__(self, system: Any, memory: Offload) -> None:
        if not isinstance(system, WorkConserving):
            raise InputError(
                f"memory={memory.name}: plans run on system=work_conserving and "
                f"system=threads, not on {getattr(system, 'name', type(system).__name__)}"
            )
        if system.contention in ("sender", "shared"):
            raise InputError(
                f"memory: plans are for transfers on links, not contention={system.contention}"
            )
        self.__dict__.update(vars(system))
        self.memory = memory.name
        self._settings = (system, memory)

    @property
    def name(self) -> str:
        """The system's."""
        return self._settings[0].name

    @property
    def memory_mode(self) -> Offload:
        """How it plans."""
        return self._settings[1]

    def with_noise(self, noise: float) -> "SystemWithPlans":
        system, memory = self._settings
        return SystemWithPlans(system.with_noise(noise), memory)

    def open(self, problem: Problem, *, num_threads: int | None = None) -> "PlanningSession":
        """A session for one problem."""
        system, memory = self._settings
        with system.open(problem) as session:
            execution = session.execution
        return PlanningSession(
            problem=problem,
            num_threads=num_threads,
            engine=simulate_plan,
            execution=execution,
            noise=system.noise,
            make_state=partial(
                make_plan_state, machine=make_machine(problem), choices=memory.choices
            ),
        )


class PlanningSession(SimulatorSession):
    """A simulator's session whose placements are planned; see SimulatorSession."""

    plans_memory: ClassVar[bool] = True

    def plan(self, placement: Placement) -> MemoryPlan:
        """What a placement does within the limits.

        Raises:
            InputError: an op does not fit on its device; says what would do.
        """
        return read_plan(self._planned(placement), self.problem, placement)

    def trace(self, placement: Placement) -> Trace:
        """See system.Session.

        Raises:
            InputError: the placement is for another problem, its strict order waits for itself, or
                an op does not fit on its device.
        """
        m = self._planned(placement)
        rules = self.rules._replace(op_noise=0.0, transfer_noise=0.0)
        run_plan(self.problem.arrays, rules, _row(placement.device), 0, m)
        return planned_trace(m, read_plan(m, self.problem, placement), self.execution)

    def _planned(self, placement: Placement) -> PlanState:
        """The state that holds the placement's plan."""
        if placement.problem_hash != self.problem.hash:
            raise InputError(
                f"placement: made for problem {placement.problem_hash}, this is {self.problem.hash}"
            )
        check_fits(self.problem, placement.device)
        m: Any = self._states[0]
        rules = self.rules._replace(op_noise=0.0, transfer_noise=0.0)
        device_V, priority_V = _row(placement.device), _row(placement.priority)
        seconds = make_plan(self.problem.arrays, rules, device_V, priority_V, m)
        if not np.isfinite(seconds):
            raise InputError("placement: never finishes: its strict order waits for itself")
        return m


def _row(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64, order="C")


def check_fits(problem: Problem, device_V: NDArray[np.int64]) -> None:
    """Refuse a placement that has no plan.

    Raises:
        InputError: names the op that needs most of those that do not fit, and the least memory that
            would do.
    """
    need_V, limit_D = op_need_bytes(problem.arrays), problem.arrays.memory_bytes
    lacking_V = np.where(need_V > limit_D[device_V] * (1 + 1e-9), need_V, -1.0)
    v = int(lacking_V.argmax())
    if lacking_V[v] >= 0:
        d = int(device_V[v])
        name = problem.cluster.devices[d].name
        raise InputError(
            f"memory: op {v} ({problem.graph.ops.names[v]!r}) does not fit on device {d} ({name}), "
            f"which has {limit_D[d]:.6g} bytes; the least that would do is {_upward(need_V[v])}"
        )


def _upward(num_bytes: float) -> str:
    """A number that is not less, exact where bytes are whole."""
    return f"{int(num_bytes)}" if num_bytes == int(num_bytes) else f"{num_bytes!r}"


def plan(problem: Problem, placement: Placement, memory: Offload | None = None) -> MemoryPlan:
    """What a placement does to keep within the memory of its devices.

    Args:
        problem: whose devices have limits.
        placement: of the problem.
        memory: how it is planned; ``Offload()`` unless given.

    Raises:
        InputError: an op does not fit on its device; says the least memory that would do.
    """
    system = SystemWithPlans(WorkConserving(), memory or Offload())
    with system.open(problem, num_threads=1) as session:
        return session.plan(placement)
