"""Memory modes that plan placements which do not fit: evict data to the host and load them again.

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
from doppler.support.errors import InputError, unrounded
from doppler.support.options import Natural, checked, within
from doppler.system import SystemKind
from doppler.trace import Trace

# Settings that the planner tries in turn: the rule that orders the ops, the share of the memory
# that it uses, how many tasks ahead it makes room by eviction, and how many seconds it waits rather
# than spending one second on evictions. `Offload.ahead` is the third number of the first try.
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
    """Evict data to the memory of the host when a device is full, and load them again.

    Attributes:
        victim: which data are evicted: those with the ``farthest`` next use, the ``least_recent``
            use, the ``cheapest`` way to the host and back, or the best ``balanced`` between that
            cost and the time until the next use.
        ahead: how many tasks ahead of a task the planner makes room for it by evicting data rather
            than by waiting until other tasks have ended.
        tries: number of settings (`TRIES`) to plan with. The planner stops early once a plan takes
            hardly longer than the placement without memory limits.
        recompute: compute data again where that is cheaper than copying them.
    """

    victim: Literal["farthest", "least_recent", "cheapest", "balanced"] = "farthest"
    ahead: Natural = 0
    tries: Annotated[int, within(1, len(TRIES))] = len(TRIES)
    recompute: bool = False

    @property
    def name(self) -> str:
        """Name of this mode in conf/memory."""
        return "offload_or_recompute" if self.recompute else "offload"

    def applied(self, system: Any) -> "SystemWithPlans | ThreadsWithPlans":
        """Return a system that plans every placement before it executes it.

        Args:
            system: a work-conserving simulator, or cores of this machine (`Threads`).

        Raises:
            InputError: the system cannot execute plans.
        """
        if isinstance(system, Threads):
            queue: Any = system.queue
            simulator = SystemWithPlans(WorkConserving(queue=queue), self)
            return ThreadsWithPlans(system, self, simulator)
        return SystemWithPlans(system, self)

    @property
    def choices(self) -> PlanChoices:
        """This mode as numbers for compiled code."""
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
    """A simulator that plans each placement, and simulates the plan.

    It has the attributes of the given system and ``memory``, so that tables tell its rules apart.

    Args:
        system: a work-conserving simulator.
        memory: how placements are planned.

    Raises:
        InputError: the system cannot execute plans.
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
                f"memory: plans are only for transfers on links, not contention={system.contention}"
            )
        self.__dict__.update(vars(system))
        self.memory = memory.name
        self._settings = (system, memory)

    @property
    def name(self) -> str:
        """Name of the simulator."""
        return self._settings[0].name

    @property
    def memory_mode(self) -> Offload:
        """How placements are planned."""
        return self._settings[1]

    def with_noise(self, noise: float) -> "SystemWithPlans":
        system, memory = self._settings
        return SystemWithPlans(system.with_noise(noise), memory)

    def open(self, problem: Problem, *, num_threads: int | None = None) -> "PlanningSession":
        """Return a session for one problem.

        Args:
            problem: to simulate.
            num_threads: number of threads that plan and simulate; all cores unless given.
        """
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
    """A simulator's session that plans each placement before it simulates it.

    Attributes:
        plans_memory: tells searches that placements are planned.
    """

    plans_memory: ClassVar[bool] = True

    def plan(self, placement: Placement) -> MemoryPlan:
        """Return the plan that keeps a placement within the memory limits.

        Args:
            placement: of the session's problem.

        Raises:
            InputError: an op does not fit on its device; the message says how many bytes it needs.
        """
        return read_plan(self._planned(placement), self.problem, placement)

    def trace(self, placement: Placement) -> Trace:
        """Plan and simulate one placement without jitter, and return all events.

        Args:
            placement: of the session's problem.

        Raises:
            InputError: the placement is for another problem, its strict order waits for itself, or
                an op does not fit on its device.
        """
        m = self._planned(placement)
        rules = self.rules._replace(op_noise=0.0, transfer_noise=0.0)
        run_plan(self.problem.arrays, rules, _row(placement.device), 0, m)
        return planned_trace(m, read_plan(m, self.problem, placement), self.execution)

    def _planned(self, placement: Placement) -> PlanState:
        """Return the state after planning the placement."""
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
    """Refuse a placement of which an op alone exceeds the memory of its device.

    Args:
        problem: whose devices have limits.
        device_V: device of each op.

    Raises:
        InputError: names the op that exceeds a device and needs most, and the bytes that it needs.
    """
    need_V, limit_D = op_need_bytes(problem.arrays), problem.arrays.memory_bytes
    lacking_V = np.where(need_V > limit_D[device_V] * (1 + 1e-9), need_V, -1.0)
    v = int(lacking_V.argmax())
    if lacking_V[v] >= 0:
        d = int(device_V[v])
        name = problem.cluster.devices[d].name
        raise InputError(
            f"memory: op {v} ({problem.graph.ops.names[v]!r}) does not fit on device {d} ({name}), "
            f"which has {limit_D[d]:.6g} bytes; the op needs at least {unrounded(need_V[v])}"
        )


def plan(problem: Problem, placement: Placement, memory: Offload | None = None) -> MemoryPlan:
    """Return the plan that keeps a placement within the memory of its devices.

    Args:
        problem: whose devices have limits.
        placement: of the problem.
        memory: how the placement is planned; ``Offload()`` unless given.

    Raises:
        InputError: an op does not fit on its device; the message says how many bytes it needs.
    """
    system = SystemWithPlans(WorkConserving(), memory or Offload())
    with system.open(problem, num_threads=1) as session:
        return session.plan(placement)
