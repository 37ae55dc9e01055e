"""Search on estimates: what is executed has been chosen, and made better, without executing.

An estimate is of the next cheaper fidelity: where the simulator executes, of the placement process
(simulator/estimates.py), a few microseconds and wrong by some per cent; on a real system, of the
simulator, with the costs that were measured. It replaces no execution, and saves most of them.
Shape suffixes: B placements, V ops.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing, TaughtPlacement, placements_of_steps
from doppler.baselines.hosts import num_ways
from doppler.env import ProblemView, merged_at_random, without_waiting
from doppler.policies import Policy
from doppler.problem import Placement, Problem
from doppler.search.evaluator import Evaluator, ScoredPlacement
from doppler.search.exchanging import exchanges
from doppler.simulator import SimulatorSession, WorkConserving, open_estimates
from doppler.simulator.estimates_kernels import estimate
from doppler.simulator.state import memory_can_lack
from doppler.support.errors import InputError
from doppler.support.options import Count, Natural, Positive, Share, checked
from doppler.system import Session
from doppler.trace import ExecutionRules

_ESTIMATED = ", estimates"  # behind the source of what they made better
# Annealing before one execution: largest number of ops placed in all its steps, and of steps if an
# execution takes real time; how many estimates take as long as a simulation.
_MOST_PLACED, _MOST_STEPS, _SIMULATING = 1_250_000, 100_000, 4
# Drafts of each kind before the first turn, when nothing is known, and the ops that they may place.
# Measured on problems of no table, where eight were no better than four. On larger graphs drafts
# are not annealed enough to tell.
_AT_FIRST, _MOST_DRAFTED = 4, 20_000
# Parts of the annealing of a draft, each accepted or not. Two parts are 0.1% to 0.7% better than
# one of twice the length with one execution, level from 16 executions on.
_PARTS = 2
# Share of a device's memory that an estimate may fill, because an execution, in which ops overtake,
# may need more. Beyond it an estimate counts a fifth longer for each hundredth.
_SAFE, _RISK = 0.95, 20.0
_MOST_RISK = 500.0  # a logarithm; what needs 26 times what there is may be told apart no more


class Drafts(Protocol):
    """What draws placements without executing any: a list scheduler, clusterings, a policy."""

    name: ClassVar[str]

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Devices and priorities of ``num`` placements, [B, V] each."""
        ...


class PlacementChooser(Protocol):
    """What plays many placements and keeps one: a policy's greedy episodes of several views."""

    name: ClassVar[str]

    def chosen(
        self, search: Evaluator, estimates: SimulatorSession, rng: np.random.Generator
    ) -> Placement:
        """The one that is estimated to take least, of what the search has time for."""
        ...


@runtime_checkable
class NotesTimes(Protocol):
    """A session of a real system that knows what ops took in its executions, as executors' do.

    One that plans memory, or is a user's own, need not.
    """

    def as_executed(self) -> Problem:
        """The problem with ops as fast as they were in what was measured so far."""
        ...


def open_estimates_of(session: Session) -> SimulatorSession:
    """The next cheaper fidelity: estimates of a simulator, a simulator of a real system.

    Where what does not fit is planned, estimates know no memory. On a real system ops are as fast
    as its executions so far tell.
    """
    if isinstance(session, SimulatorSession):
        problem = _with_less_memory(session.problem)
        limited = not session.plans_memory
        return open_estimates(problem, session.execution.contention, limited=limited)
    problem = session.as_executed() if isinstance(session, NotesTimes) else session.problem
    untold = ExecutionRules(queue="priority" if session.honours_order else "fifo")
    rules: ExecutionRules = getattr(session, "execution", untold)
    contention = "shared" if problem.cluster.shared else rules.contention
    system = WorkConserving(queue=rules.queue, contention=contention)
    return system.open(_with_less_memory(problem))


def _with_less_memory(problem: Problem) -> Problem:
    """The problem with the memory that estimates may fill, where it can be short."""
    p = problem.arrays
    if not memory_can_lack(p):
        return problem
    return replace(problem, arrays=p._replace(memory_bytes=_SAFE * p.memory_bytes))


def best_by_estimates(
    estimates: SimulatorSession, placements: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> tuple[Placement, int]:
    """The placement that is estimated to take least, and which it is.

    placements: devices and priorities, [B, V] both.
    """
    device_BV, priority_BV = map(np.concatenate, zip(*placements, strict=True))
    costs = estimated_costs(estimates, device_BV, priority_BV)
    best = min(range(len(costs)), key=costs.__getitem__)
    return Placement.make(estimates.problem, device_BV[best], priority_BV[best]), best


class Estimated(NamedTuple):
    """What placements are compared by, the least is best.

    Attributes:
        cost: seconds, more for what may not fit.
        seconds: estimated.
        used: of the memory that estimates may fill, where it is fullest.
    """

    cost: float
    seconds: float
    used: float

    @property
    def is_safe(self) -> bool:
        """Whether the placement surely fits."""
        return self.used <= 1.0


def estimated_costs(
    estimates: SimulatorSession, device_BV: NDArray[np.int64], priority_BV: NDArray[np.int64]
) -> list[Estimated]:
    """For each placement what to compare it by."""
    found = estimates.measure(device_BV, priority_BV)
    used_B = np.nan_to_num(found.peak_bytes / estimates.problem.arrays.memory_bytes).max(axis=1)
    risk_B = np.exp(np.minimum(_RISK * np.maximum(0.0, used_B - 1.0), _MOST_RISK))
    seconds_B = np.where(np.isfinite(found.seconds).all(axis=1), found.seconds.mean(axis=1), np.inf)
    columns = seconds_B * risk_B, seconds_B, used_B
    return list(map(Estimated, *(column.tolist() for column in columns)))


def limit_of(estimates: SimulatorSession, best: Estimated) -> float:
    """Seconds from which on no estimate of an episode is better than this one; inf if any may be.

    Estimates of the placement process are those by which episodes place, where transfers wait.
    """
    exact = estimates.engine is estimate and estimates.execution.contention in ("fifo", "engines")
    return best.cost if exact else np.inf


def check_view(view: ProblemView, problem: Problem) -> None:
    """Refuse what was made for a problem of another size.

    Raises:
        InputError: says both sizes.
    """
    seen, asked = (f"{p.num_ops} ops on {p.num_devices} devices" for p in (view.problem, problem))
    if seen != asked:
        raise InputError(f"view: of another problem, {seen}, not {asked}")


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Episodes:
    """A policy's episodes as drafts.

    Attributes:
        view: of the problem.
        merged: place groups of ops, each time other ones; else ops.
    """

    policy: Policy
    view: ProblemView
    merged: bool = False
    name: ClassVar[str] = "episode"

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See Drafts; ``problem`` is the view's."""
        check_view(self.view, problem)
        view = without_waiting(self.view)
        if not self.merged:
            return self.policy.rollout(view, num, None, rng).placements()
        drawn = [
            self.policy.rollout(merged_at_random(view, rng), 1, None, rng).placements()
            for _ in range(num)
        ]
        device_BV, priority_BV = map(np.concatenate, zip(*drawn, strict=True))
        return device_BV, priority_BV


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class AnnealOnEstimates:
    """Before each execution, annealing on estimates; what it finds is executed.

    Every other time it begins with the best placement so far, its ops in the order in which they
    started, else with new drafts: of one of each kind, at first of several, the best by estimates.
    Of a simulator that keeps no order estimates tell too little to anneal: drafts are executed as
    they are. Where executing takes real time, so does annealing, and what was learned of the
    devices may have two of them, or two hosts, exchanged before.

    Attributes:
        drafts: kinds of them; none: it always begins with the best placement so far.
        greedy: drafted in place of episodes as long as nothing was executed.
        steps: of annealing before each execution; fewer on large graphs.
        at_most: executions of one turn.
        hot, cold, devices: see baselines.Annealing.

    Source: searching a cheap model of an expensive objective before each evaluation of it, as
    Jones, Schonlau, Welch, "Efficient global optimization of expensive black-box functions",
    Journal of Global Optimization 1998; our model is given, not fitted.
    """

    drafts: Sequence[Drafts]
    greedy: PlacementChooser | None = None
    steps: Natural = 2500
    at_most: Count = 64
    hot: Positive = 0.02
    cold: Positive = 1e-4
    devices: bool = True
    share: Share | None = None
    repeats: ClassVar[bool] = True

    def search(
        self, best: Evaluator, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        session = best.session
        is_simulated = isinstance(session, SimulatorSession)
        fewest = self.steps if is_simulated else self.steps // _SIMULATING
        fewest = min(fewest, _MOST_PLACED // session.problem.num_ops)
        steps = fewest
        searches = session.honours_order or (self.devices and not is_simulated)
        anneals = steps > 0 and searches
        each_s = 0.0
        for turn in range(min(self.at_most, evaluations // best.num_confirming)):
            if turn and not best.has_time():
                break
            with open_estimates_of(session) as estimates:  # real executions tell more each time
                start = best.found
                if self.drafts and (turn % 2 == 0 or start.placement is None or not anneals):
                    start = self._draft(best, estimates, turn == 0, rng)
                elif isinstance(session, SimulatorSession):
                    start = as_executed(session, start)
                if start.placement is None:
                    raise InputError(
                        "drafts: none are given, and there is no placement to start from"
                    )
                if self.devices and not is_simulated:
                    start = start._replace(
                        placement=_exchanged(estimates, start.placement, fewest, rng)
                    )
                if anneals:
                    begin_s = time.perf_counter()
                    start = self._made_better(session, estimates, start, steps, rng, walks)
                    each_s = (time.perf_counter() - begin_s) / steps
            assert start.placement is not None
            found, begin_s = start.placement, time.perf_counter()
            best.confirm(
                Placement.make(session.problem, found.device, found.priority), start.source
            )
            if anneals and not is_simulated:
                lasting = int((time.perf_counter() - begin_s) / each_s)
                steps = min(max(fewest, lasting), _MOST_STEPS)

    def _draft(
        self, best: Evaluator, estimates: SimulatorSession, first: bool, rng: np.random.Generator
    ) -> ScoredPlacement:
        """Of new drafts of each kind, for each way to use hosts, the best by estimates."""
        problem, kinds = estimates.problem, self.drafts
        num = num_ways(problem)
        if first:
            num *= max(1, min(_AT_FIRST, _MOST_DRAFTED // (num * problem.num_ops)))
        greedy = self.greedy if best.evaluations == 0 else None
        if greedy is not None:
            kinds = [kind for kind in kinds if not isinstance(kind, Episodes)]
        drawn = [kind.draw(problem, num, rng) for kind in kinds]
        names = [kind.name for kind in kinds for _ in range(num)]
        if greedy is not None:
            chosen = greedy.chosen(best, estimates, rng)
            drawn.append((chosen.device[None], chosen.priority[None]))
            names.append(greedy.name)
        placement, index = best_by_estimates(estimates, drawn)
        return ScoredPlacement(placement, np.inf, names[index])

    def _made_better(
        self,
        session: Session,
        estimates: SimulatorSession,
        start: ScoredPlacement,
        steps: int,
        rng: np.random.Generator,
        walks: int,
    ) -> ScoredPlacement:
        """Anneal on estimates; a simulator's draft in parts, which may not only add waiting."""
        is_draft = not np.isfinite(start.seconds) and session.problem.num_ops <= _MOST_DRAFTED
        if not is_draft or not isinstance(session, SimulatorSession):
            return self._annealed(estimates, start, steps, rng, walks)
        start = start._replace(placement=in_order(session.problem, start))
        for _ in range(_PARTS):
            annealed = self._annealed(estimates, start, max(1, steps // _PARTS), rng, walks)
            if not waits_longer(session, estimates, annealed, start):
                start = annealed
        return start

    def _annealed(
        self,
        estimates: SimulatorSession,
        start: ScoredPlacement,
        steps: int,
        rng: np.random.Generator,
        walks: int,
    ) -> ScoredPlacement:
        """What annealing on estimates makes of it; itself where nothing is estimated to fit."""
        assert start.placement is not None
        annealing = Annealing(
            evaluations=steps * walks,
            order=estimates.honours_order,
            starts=walks,
            hot=self.hot,
            cold=self.cold,
            devices=self.devices,
        )
        result = annealing.place(estimates, rng, initial=in_order(estimates.problem, start))
        if not np.isfinite(result.makespan_s):
            return start
        source = f"{start.source.removesuffix(_ESTIMATED)}{_ESTIMATED}"
        return ScoredPlacement(result.placement, result.makespan_s, source)


def waits_longer(
    session: SimulatorSession,
    estimates: SimulatorSession,
    annealed: ScoredPlacement,
    start: ScoredPlacement,
) -> bool:
    """Whether annealing on estimates has but found a plan that waits, and runs no sooner.

    Estimates believe that a device waits for an op of a better rank; a work-conserving one starts
    another. What that takes is known without executing where transfers do not contend: so long it
    takes at least, about. Where they do not in the system either it would be its execution. No op
    of either is to come before its producers.
    """
    rules = session.execution
    if rules.contention == "none":
        return False
    told = []
    runs = WorkConserving(queue=rules.queue, contention="none", streams=rules.streams)
    with runs.open(session.problem, num_threads=1) as without_contention:
        for found in (annealed, start):
            assert found.placement is not None
            row = found.placement.device[None], found.placement.priority[None]
            runs_s = float(without_contention.measure(*row).seconds[0, 0])
            told.append(max(estimated_costs(estimates, *row)[0].cost, runs_s))
    return told[0] > told[1]


def _exchanged(
    estimates: SimulatorSession, placement: Placement, most: int, rng: np.random.Generator
) -> Placement:
    """The same on the devices, with two exchanged or none, where it is estimated best."""
    device_BV = exchanges(estimates.problem.cluster, most, rng)[:, placement.device]
    priority_BV = np.broadcast_to(placement.priority, device_BV.shape)
    return best_by_estimates(estimates, [(device_BV, priority_BV)])[0]


def as_executed(session: SimulatorSession, found: ScoredPlacement) -> ScoredPlacement:
    """The same with its ops ranked by when they start, where there is a placement.

    Estimates let no op overtake. Of these ranks they tell what the execution took, or nearly; of
    others, such as searches end with, up to twice as much.
    """
    if found.placement is None:
        return found
    placement = found.placement
    priority_V = ranked_by_start(session.trace(placement).op_start_s, placement.priority)
    return found._replace(placement=Placement.make(session.problem, placement.device, priority_V))


def ranked_by_start(
    start_V: NDArray[np.float64], priority_V: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Priorities [V] by when ops start, ties as they were."""
    ranked_V = np.empty_like(priority_V)
    ranked_V[np.lexsort((priority_V, start_V))] = np.arange(len(priority_V))
    return ranked_V


def in_order(problem: Problem, found: ScoredPlacement) -> Placement:
    """The same placement, but no op of it comes before its producers: estimates need that."""
    assert found.placement is not None
    taught = TaughtPlacement.of(problem, found.placement)
    device_BV, priority_BV = placements_of_steps(taught.op[None], taught.device[None])
    return Placement.make(problem, device_BV[0], priority_BV[0])
