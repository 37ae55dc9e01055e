"""How methods are judged: nominal makespans, fresh jitter, rows of a table."""

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
    """A method's outcome: the placement, its nominal makespan, and what it took to find it.

    settings: of the method, as configured.
    uses_order: it chose the order, and the system keeps it.
    lower_bound_s: what it proved that no placement can beat, if it proves such things.
    source: of a search that begins with several methods, what found the placement.
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


def nominal_s(spec: Specification, placement: Placement) -> float:
    """Seconds without jitter; inf where the placement does not fit in memory."""
    with spec.system.with_noise(0.0).open(spec.problem) as session:
        rng = seeded_generator(spec.seed, "nominal")
        rows = placement.device[None], placement.priority[None]
        return float(session.measure(*rows, rng=rng).cost_s()[0])


def judged_row(spec: Specification, method: Method, bound: LowerBound) -> ResultRow:
    """The protocol's figures of a method, jitter on fresh draws that all methods share.

    On a simulator; of measured methods see `measured_row`.
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
    """The figures of a method that was executed R times; its makespan is their median.

    Args:
        spec: of the system that executed it.
        method: with its placement.
        seconds_R: of each execution.
        doubt: why they cannot be trusted; empty where nothing is wrong.
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
    """Equal for placements that the system executes alike."""
    parts = [placement.device.tolist()]
    if honours_order(spec.system.queue):
        parts.append(placement.priority.tolist())
    return short_hash(parts)


def largest_bound(spec: Specification, methods: list[Method]) -> LowerBound:
    """The largest of what is known before any search and what the methods proved."""
    proven = [
        LowerBound(seconds=method.lower_bound_s, name=method.name)
        for method in methods
        if method.lower_bound_s is not None
    ]
    return max([spec.bound, *proven], key=lambda bound: bound.seconds)
