"""Proves with CP-SAT how short schedules on given devices can be, memory included."""

from dataclasses import dataclass

import numpy as np

from doppler.baselines import CPSAT
from doppler.baselines.cp_sat import placement_of
from doppler.baselines.cp_sat_program import ConstraintProgram
from doppler.extensions.pipelines.orders import pipeline_of
from doppler.problem import Placement
from doppler.system import Session, measure_placements


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A proven lower bound, and the best schedule that is known.

    Attributes:
        lower_bound_s: no schedule on these devices is shorter.
        placement: the best schedule.
        makespan_s: of that schedule.
    """

    lower_bound_s: float
    placement: Placement
    makespan_s: float


def prove(session: Session, placement: Placement, solver: CPSAT, *, seed: int = 0) -> Proof:
    """Search for better schedules on the devices of a placement, and prove a lower bound.

    Microbatches are interchangeable. So those of a stage are kept in order, which excludes no
    optimum.

    Args:
        session: of the problem; its devices keep the order of placements.
        placement: to start from; it fits in memory.
        solver: CP-SAT with its time limit.
        seed: of the search.
    """
    problem = session.problem
    pipeline = pipeline_of(problem).pipeline
    program = ConstraintProgram(session.trace(placement))
    index = {action: v for v, action in enumerate(pipeline_of(problem).actions)}
    for stage in range(pipeline.num_stages):
        for kind in "FIWB":
            ops = [v for action, v in index.items() if (action.stage, action.kind) == (stage, kind)]
            program.in_order(ops)
    bound_s, solutions = solver.solve(program, seed)
    found = [placement, *(placement_of(problem, one) for one in solutions)]
    cost_B = measure_placements(session, found, np.random.default_rng(seed))
    best = int(cost_B.argmin())
    return Proof(lower_bound_s=bound_s, placement=found[best], makespan_s=float(cost_B[best]))
