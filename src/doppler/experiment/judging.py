"""How methods are judged: makespans without jitter, with jitter, and rows of a table."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import LowerBound
from doppler.experiment.specification import Specification, short_hash
from doppler.problem import Placement
from doppler.report.rows import ResultRow, gap_over
from doppler.search import seeded_generator
from doppler.system import honours_order

JITTER, JITTER_DRAWS = 0.05, 1000
UNKNOWN_BOUND = LowerBound(seconds=0.0, name="unknown")


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """A method's outcome: its placement, the makespan, and the effort to find it.

    Attributes:
        name: of the method in tables.
        settings: of the method, as configured.
        placement: the best one that it found.
        makespan_s: of the placement, without jitter.
        uses_order: whether the method chose the order of ops and the system follows it.
        evaluations: executions that it used.
        wall_s: its wall seconds without compilation.
        lower_bound_s: a bound that the method proved; None if it proves none.
        source: which step found the placement, if the search has several.
        budget: executions that were allowed, if the number that it used depends on measurements;
            else 0.
    """

    name: str
    settings: Any
    placement: Placement
    makespan_s: float
    uses_order: bool
    evaluations: int
    wall_s: float
    lower_bound_s: float | None = None
    source: str = ""
    budget: int = 0


def nominal_s(spec: Specification, placement: Placement) -> float:
    """The makespan without jitter; inf if the placement does not fit in memory.

    Args:
        spec: gives the system.
        placement: what to execute.
    """
    with spec.system.with_noise(0.0).open(spec.problem) as session:
        rng = seeded_generator(spec.seed, "nominal")
        rows = placement.device[None], placement.priority[None]
        return float(session.measure(*rows, rng=rng).cost_s()[0])


def judged_row(spec: Specification, method: Method, bound: LowerBound) -> ResultRow:
    """The row of a simulated method; all methods share the same fresh draws of jitter.

    For measured methods see `measured_row`.

    Args:
        spec: gives the simulator.
        method: with its placement.
        bound: the lower bound to compare with.
    """
    placement = method.placement
    with spec.system.with_noise(JITTER).open(spec.problem) as session:
        draws = session.measure(
            placement.device[None],
            placement.priority[None],
            repeats=JITTER_DRAWS,
            rng=seeded_generator(spec.seed, "jitter"),
        ).seconds[0]
    return _row(spec, method, bound, draws)


def measured_row(
    spec: Specification, method: Method, seconds_R: NDArray[np.float64], doubt: str = ""
) -> ResultRow:
    """The row of a method that was executed R times; its makespan is the median.

    Args:
        spec: of the system that executed it.
        method: with its placement.
        seconds_R: seconds [R] of each execution.
        doubt: why they cannot be trusted; empty if they can.
    """
    median_s = float(np.median(seconds_R))
    row = _row(spec, replace(method, makespan_s=median_s), UNKNOWN_BOUND, seconds_R)
    return replace(row, doubt=doubt)


def _row(
    spec: Specification, method: Method, bound: LowerBound, draws: NDArray[np.float64]
) -> ResultRow:
    return ResultRow(
        method=method.name,
        variant=short_hash(method.settings),
        problem=spec.problem.hash,
        rules=", ".join(f"{key} {value}" for key, value in vars(spec.system).items()),
        workload=str(spec.cfg.workload.name),
        cluster=str(spec.cfg.cluster.name),
        num_devices=spec.problem.num_devices,
        system=spec.system.name,
        system_kind=spec.system.kind,
        queue=spec.system.queue,
        uses_order=method.uses_order and honours_order(spec.system.queue),
        seed=spec.seed,
        evaluations=method.evaluations,
        budget=method.budget,
        wall_s=method.wall_s,
        makespan_s=method.makespan_s,
        jitter_mean_s=float(draws.mean()),
        jitter_p95_s=float(np.quantile(draws, 0.95)),
        lower_bound_s=bound.seconds,
        bound=bound.name,
        gap=gap_over(bound.seconds, method.makespan_s),
        source=method.source,
        placement=_placement_key(spec, method.placement),
    )


def _placement_key(spec: Specification, placement: Placement) -> str:
    """A key that is equal for placements that the system executes in the same way."""
    parts = [placement.device.tolist()]
    if honours_order(spec.system.queue):
        parts.append(placement.priority.tolist())
    return short_hash(parts)


def largest_bound(spec: Specification, methods: list[Method]) -> LowerBound:
    """The largest lower bound: known before any search, or proved by one of the methods.

    Args:
        spec: gives the bound known before any search.
        methods: whose bounds are compared.
    """
    proven = [
        LowerBound(seconds=method.lower_bound_s, name=method.name)
        for method in methods
        if method.lower_bound_s is not None
    ]
    return max([spec.bound, *proven], key=lambda bound: bound.seconds)
