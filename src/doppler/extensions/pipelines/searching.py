"""Schedules from which a search starts: torch's own, and list schedules on good devices.

Shape suffixes: B placements, V ops, D devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.contract import SearchResult
from doppler.extensions.pipelines.assigning import assignment_bound_s, good_assignments
from doppler.extensions.pipelines.listing import MANNERS, list_schedule
from doppler.extensions.pipelines.orders import (
    fused_of,
    orders_of,
    pipeline_of,
    placement_of_orders,
    split_actions,
)
from doppler.extensions.pipelines.stages import Orders, graph_of
from doppler.extensions.pipelines.torch_schedules import schedules_for
from doppler.problem import Placement, Problem, build
from doppler.support.errors import InputError
from doppler.support.options import checked
from doppler.system import Session, System

IntArray = NDArray[np.int64]
# Largest number of ops in all list schedules of one search; these take some seconds.
_MOST_LISTED = 300_000
# Number of assignments to start from, and of those that are tried in all manners.
_MOST_ASSIGNMENTS, _BEST = 48, 4


class Schedules:
    """A set of schedules, as a baseline and as drafts of a search; subclasses say which."""

    uses_order: ClassVar[bool] = True
    needs_order: ClassVar[bool] = True

    def placements(self, problem: Problem, rng: np.random.Generator) -> list[Placement]:
        """Return the placements of all schedules.

        Args:
            problem: of a pipeline.
            rng: for sets that are drawn.
        """
        raise NotImplementedError

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """Execute each schedule once, and return the best one (see `baselines.Baseline`).

        Args:
            session: of the problem.
            rng: for sets that are drawn, and for noise.
        """
        problem = session.problem
        placements = self.placements(problem, rng)
        if not placements:
            anywhere = Placement.make(problem, problem.group_seconds.argmin(axis=1))
            return SearchResult(placement=anywhere, makespan_s=np.inf, evaluations=0)
        cost_B = session.measure(*_stacked(placements), rng=rng).cost_s()
        best = int(cost_B.argmin())
        pipeline = pipeline_of(problem).pipeline
        device_S = pipeline.devices()
        # Where memory is planned, what does not fit is moved to the host.
        is_planned = getattr(session, "plans_memory", False)
        memory_D = None if is_planned else problem.arrays.memory_bytes
        return SearchResult(
            placement=placements[best],
            makespan_s=float(cost_B[best]),
            evaluations=len(placements),
            lower_bound_s=None
            if device_S is None
            else assignment_bound_s(pipeline, device_S, memory_D),
        )

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Return schedules at random (see search.Drafts).

        Args:
            problem: of a pipeline.
            num: number of placements, B.
            rng: draws them.

        Returns:
            Devices and priorities [B, V].
        """
        placements = self.placements(problem, rng)
        if not placements:
            placements = [Placement.make(problem, problem.group_seconds.argmin(axis=1))]
        return _stacked([placements[i] for i in rng.integers(len(placements), size=num)])


@checked
@dataclass(frozen=True, kw_only=True)
class TorchSchedules(Schedules):
    """The schedules of torch.distributed.pipelining that suit the stages, with every B divided.

    Here I and W of a B are two ops, so that the gradient is sent after I. In torch a B sends it
    after W, so these schedules are a little faster here than in torch. `judged_schedules` judges
    them as torch runs them.

    Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream" (1F1B), SOSP 2019,
    and "Megatron-LM" (interleaved), SC 2021; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
    2024; DeepSeek-AI, "DeepSeek-V3" (DualPipe), 2024; all as torch implements them.
    """

    name: ClassVar[str] = "torch"

    def placements(self, problem: Problem, rng: np.random.Generator) -> list[Placement]:
        graph = pipeline_of(problem)
        separate = graph.pipeline.weight_grad_s is not None
        return [
            placement_of_orders(problem, split_actions(orders) if separate else orders)
            for orders in schedules_for(graph.pipeline).values()
        ]


@checked
@dataclass(frozen=True, kw_only=True)
class ListSchedules(Schedules):
    """List schedules within memory limits, on the given devices or on those of least bound."""

    name: ClassVar[str] = "list"

    def placements(self, problem: Problem, rng: np.random.Generator) -> list[Placement]:
        """Return list schedules in all manners on the best assignments, limited to some seconds.

        Args:
            problem: of a pipeline.
            rng: for the search of assignments.
        """
        assignments = _assignments(problem, rng, _MOST_ASSIGNMENTS)
        if len(assignments) > 1:
            assignments = _improved(problem, assignments, rng)[:_BEST]
        return self._listed(problem, assignments, MANNERS)

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Return list schedules on good assignments, each in a random manner (see search.Drafts).

        Args:
            problem: of a pipeline.
            num: number of placements, B.
            rng: draws them.

        Returns:
            Devices and priorities [B, V].
        """
        drawn: list[Placement] = []
        assignments = _assignments(problem, rng, 8)
        manners = list(MANNERS)
        while len(drawn) < num and assignments and manners:
            devices = assignments[min(len(assignments) - 1, int(rng.exponential(2.0)))]
            manner = manners.pop(int(rng.integers(len(manners))))
            drawn += self._listed(problem, [devices], [manner])
        if not drawn:
            return super().draw(problem, num, rng)
        return _stacked([drawn[i % len(drawn)] for i in range(num)])

    def _listed(
        self, problem: Problem, assignments: Sequence[IntArray], manners
    ) -> list[Placement]:
        memory_D, pipeline = problem.arrays.memory_bytes, pipeline_of(problem).pipeline
        found = [
            list_schedule(pipeline, device_S, memory_D, manner)
            for device_S in assignments
            for manner in manners
        ]
        return [placement_of_orders(problem, one.orders) for one in found if one is not None]


def _assignments(problem: Problem, rng: np.random.Generator, most: int) -> list[IntArray]:
    """Return the given devices of the stages, or good ones if they are free."""
    pipeline = pipeline_of(problem).pipeline
    given_S = pipeline.devices()
    if given_S is not None:
        return [given_S]
    return good_assignments(pipeline, problem.arrays.memory_bytes, rng, most=max(1, most))


def _improved(
    problem: Problem, assignments: Sequence[IntArray], rng: np.random.Generator
) -> list[IntArray]:
    """Improve assignments by random changes; return them, best list schedule first.

    A change moves one stage, or swaps two.
    """
    pipeline, memory_D = pipeline_of(problem).pipeline, problem.arrays.memory_bytes
    left = max(1, _MOST_LISTED // problem.num_ops)
    seconds: dict[tuple[int, ...], float] = {}

    def listed_s(device_S: IntArray) -> float:
        key = tuple(device_S.tolist())
        if key not in seconds:
            listed = None
            if len(set(key)) == pipeline.num_devices:
                listed = list_schedule(pipeline, device_S, memory_D, MANNERS[0])
            seconds[key] = np.inf if listed is None else listed.seconds
        return seconds[key]

    best = min(assignments[: max(1, left // 3)], key=listed_s)
    while len(seconds) < left:
        near = best.copy()
        one, other = rng.integers(pipeline.num_stages, size=2)
        if rng.random() < 0.5:
            near[one] = rng.integers(pipeline.num_devices)
        else:
            near[[one, other]] = near[[other, one]]
        before = len(seconds)
        if listed_s(near) <= listed_s(best):
            best = near
        left -= len(seconds) == before  # ends the loop if there are few assignments
    return [np.array(key) for key in sorted(seconds, key=seconds.__getitem__)]


def _stacked(placements: Sequence[Placement]) -> tuple[IntArray, IntArray]:
    """Return devices and priorities [B, V]."""
    return (
        np.stack([placement.device for placement in placements]),
        np.stack([placement.priority for placement in placements]),
    )


@dataclass(frozen=True, kw_only=True)
class JudgedSchedule:
    """A schedule, and what it takes.

    Attributes:
        orders: what each device does, in order.
        seconds: of a training step.
        peak_bytes: [D] largest memory of each device.
        fits: whether it fits in memory.
    """

    orders: Orders
    seconds: float
    peak_bytes: NDArray[np.float64]
    fits: bool


def judged_schedules(problem: Problem, system: System) -> dict[str, JudgedSchedule]:
    """Execute torch's schedules as torch runs them, whether they fit or not.

    A B is one op, and sends its gradient when it ends.

    Args:
        problem: of a pipeline.
        system: on which they are executed.
    """
    graph, found = pipeline_of(problem), {}
    for name, orders in schedules_for(graph.pipeline).items():
        found[name] = judged(problem, system, orders)
    return found


def judged(problem: Problem, system: System, orders: Orders) -> JudgedSchedule:
    """Execute one schedule on the devices of a problem; every B is one op.

    Args:
        problem: of a pipeline.
        system: on which it is executed, without noise.
        orders: the schedule.

    Raises:
        InputError: the schedule does not suit the pipeline, or has a deadlock.
    """
    pipeline = pipeline_of(problem).pipeline
    fused = fused_of(orders, pipeline.num_stages, pipeline.microbatches)
    try:
        own = build(graph_of(pipeline, "schedule", fused), problem.cluster)
        placement = placement_of_orders(own, orders)
    except InputError as error:
        raise InputError(f"schedule: {error}") from None
    with system.with_noise(0.0).open(own) as session:
        measured = session.measure(*_stacked([placement]))
    return JudgedSchedule(
        orders=orders,
        seconds=float(measured.seconds[0, 0]),
        peak_bytes=measured.peak_bytes[0],
        fits=bool(measured.feasible[0]),
    )


def found_orders(problem: Problem, system: System, placement: Placement) -> Orders:
    """Return what each device does under a placement, by start.

    Args:
        problem: of a pipeline.
        system: on which the placement is executed, without noise.
        placement: to execute.
    """
    with system.with_noise(0.0).open(problem) as session:
        return orders_of(session.trace(placement))
