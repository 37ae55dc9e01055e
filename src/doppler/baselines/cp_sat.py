"""CP-SAT: placement and order as one constraint program, with a proven bound.

Shape suffixes: V ops.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, ClassVar

import numpy as np

from doppler.baselines.clustering import Clustering
from doppler.baselines.contract import SearchResult
from doppler.baselines.cp_sat_program import ConstraintProgram, Solution
from doppler.problem import Placement, Problem, topological_priority
from doppler.support.errors import InputError
from doppler.support.options import Positive, checked, within
from doppler.system import Session, measure_placements

# The search starts from the best of this many clusterings.
_START_EVALUATIONS = 64


@checked
@dataclass(frozen=True, kw_only=True)
class CPSAT:
    """The best placement and order that OR-tools' CP-SAT finds, starting from a good clustering.

    In its program devices may wait although an op is ready, and transfers contend as in the system
    but go in any order. Every improved solution is executed with its start times as priorities, and
    the best execution is returned. Memory is part of the program only if ops have no choice of
    devices; otherwise a placement that does not fit costs inf when it is executed, and the bound
    ignores memory. On measured systems the bound is that of the nominal times.

    Attributes:
        deterministic_time: effort in CP-SAT's own unit, roughly seconds of one core.
        seconds: upper limit of the search. Results repeat unless it is reached.
        workers: threads.

    Source: Perron, Didier, Gay, "The CP-SAT-LP solver", CP 2023.
    """

    deterministic_time: Positive
    seconds: Positive
    workers: Annotated[int, within(1, 1000)]
    uses_order: ClassVar[bool] = True
    needs_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if find_spec("ortools") is None:
            raise InputError(
                "baseline.cp_sat: OR-tools is not installed (pip install 'ortools>=9.12,<10')"
            )

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        start = Clustering(evaluations=_START_EVALUATIONS).place(session, rng)
        program = ConstraintProgram(session.trace(start.placement))
        bound_s, solutions = self.solve(program, int(rng.integers(2**31)))
        placements = [placement_of(session.problem, solution) for solution in solutions]
        cost_B = measure_placements(session, [start.placement, *placements], rng)
        best = int(cost_B.argmin())
        return SearchResult(
            placement=[start.placement, *placements][best],
            makespan_s=float(cost_B[best]),
            evaluations=start.evaluations + len(cost_B),
            lower_bound_s=bound_s,
        )

    def solve(self, program: ConstraintProgram, seed: int) -> tuple[float, list[Solution]]:
        """Return the proven bound in seconds, and every solution that improved on all before it."""
        from ortools.sat.python import cp_model

        solutions: list[Solution] = []

        class Collect(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                solutions.append(program.read(self))

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = seed
        solver.parameters.max_deterministic_time = self.deterministic_time
        solver.parameters.max_time_in_seconds = self.seconds
        # Otherwise Ctrl-C would only end the search, and the run would continue with its result.
        solver.parameters.catch_sigint_signal = False
        # Searches take turns in a fixed order, so the result does not depend on the workers' speed.
        # One complete search besides the local ones; several would share its time and find less.
        solver.parameters.interleave_search = True
        solver.parameters.subsolvers.append("pseudo_costs")
        status = solver.solve(program.model, Collect())
        if status == cp_model.INFEASIBLE:  # nothing that fits in memory is as short as the hint
            return 0.0, solutions
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN), status
        return program.bound_s(solver.best_objective_bound), solutions


def placement_of(problem: Problem, solution: Solution) -> Placement:
    """Return a placement with priorities by start, ties in topological order."""
    priority_V = np.empty(problem.num_ops, dtype=np.int64)
    order_V = np.lexsort((topological_priority(problem), solution.start))
    priority_V[order_V] = np.arange(problem.num_ops)
    return Placement.make(problem, solution.device, priority_V)
