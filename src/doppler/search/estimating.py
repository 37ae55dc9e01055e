"""Search on estimates: placements are chosen and improved without executing them.

An estimate comes from the next cheaper model. If the simulator executes, it is the placement
process (simulator/estimates.py), which takes a few microseconds and is wrong by a few per cent. On
a real system it is the simulator with measured costs. An estimate never replaces an execution, but
it saves most of them.

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

_ESTIMATED = ", estimates"  # appended to the source of improved placements
# Limits of annealing before one execution: number of ops placed in all steps together; number of
# steps on a real system. The third is the number of estimates that take as long as a simulation.
_MOST_PLACED, _MOST_STEPS, _SIMULATING = 1_250_000, 100_000, 4
# Drafts of each kind before the first turn, when nothing is known, and a limit on the ops that they
# place. On problems outside our tables, eight were no better than four. On larger graphs drafts are
# annealed too little to tell.
_AT_FIRST, _MOST_DRAFTED = 4, 20_000
# Parts of the annealing of a draft; each is accepted or rejected. With one execution, two parts are
# 0.1% to 0.7% better than one of twice the length; from 16 executions on there is no difference.
_PARTS = 2
# Share of a device's memory that an estimate may fill, because an execution, in which ops overtake
# each other, may need more. Each hundredth beyond it adds a fifth to the cost.
_SAFE, _RISK = 0.95, 20.0
_MOST_RISK = 500.0  # of a logarithm: placements beyond 26 times the memory cost the same


class Drafts(Protocol):
    """A source of placements that executes none: a list scheduler, clusterings, a policy."""

    name: ClassVar[str]

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw placements.

        Args:
            problem: to place.
            num: of placements.
            rng: draws them.

        Returns:
            Devices and priorities, [B, V] each.
        """
        ...


class PlacementChooser(Protocol):
    """Makes many placements and keeps one, such as a policy's greedy episodes on several views."""

    name: ClassVar[str]

    def chosen(
        self, search: Evaluator, estimates: SimulatorSession, rng: np.random.Generator
    ) -> Placement:
        """Return the placement with the best estimate, of those that the search has time to make.

        Args:
            search: knows how much time is left.
            estimates: estimates placements.
            rng: draws placements.
        """
        ...


@runtime_checkable
class NotesTimes(Protocol):
    """A session of a real system that records how long ops took, as executors do.

    Sessions that plan memory, and sessions of users, need not implement it.
    """

    def as_executed(self) -> Problem:
        """The problem with ops as fast as in the executions so far."""
        ...


def open_estimates_of(session: Session) -> SimulatorSession:
    """Open the next cheaper model: estimates for a simulator, a simulator for a real system.

    If the session plans memory for placements that do not fit, estimates ignore memory. For a real
    system, ops are as fast as in its executions so far.

    Args:
        session: that executes placements.
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
    """The problem with only the memory that estimates may fill, if memory can be short."""
    p = problem.arrays
    if not memory_can_lack(p):
        return problem
    return replace(problem, arrays=p._replace(memory_bytes=_SAFE * p.memory_bytes))


def best_by_estimates(
    estimates: SimulatorSession, placements: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> tuple[Placement, int]:
    """Return the placement with the best estimate, and its index.

    Args:
        estimates: estimates placements.
        placements: devices and priorities, [B, V] each.
    """
    device_BV, priority_BV = map(np.concatenate, zip(*placements, strict=True))
    costs = estimated_costs(estimates, device_BV, priority_BV)
    best = min(range(len(costs)), key=costs.__getitem__)
    return Placement.make(estimates.problem, device_BV[best], priority_BV[best]), best


class Estimated(NamedTuple):
    """The estimate of a placement; smaller is better.

    Attributes:
        cost: seconds, increased if the placement may not fit.
        seconds: estimated makespan.
        used: share of the memory that estimates may fill, on the fullest device.
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
    """Estimate placements.

    Args:
        estimates: estimates placements.
        device_BV: device of each op.
        priority_BV: rank of each op.
    """
    found = estimates.measure(device_BV, priority_BV)
    used_B = np.nan_to_num(found.peak_bytes / estimates.problem.arrays.memory_bytes).max(axis=1)
    risk_B = np.exp(np.minimum(_RISK * np.maximum(0.0, used_B - 1.0), _MOST_RISK))
    seconds_B = np.where(np.isfinite(found.seconds).all(axis=1), found.seconds.mean(axis=1), np.inf)
    columns = seconds_B * risk_B, seconds_B, used_B
    return list(map(Estimated, *(column.tolist() for column in columns)))


def limit_of(estimates: SimulatorSession, best: Estimated) -> float:
    """Return the seconds from which on no episode's estimate can beat this one; inf if unknown.

    Only estimates by the placement process, which episodes follow step by step, give a limit.

    Args:
        estimates: estimates placements.
        best: the estimate to beat.
    """
    exact = estimates.engine is estimate and estimates.execution.contention in ("fifo", "engines")
    return best.cost if exact else np.inf


def check_view(view: ProblemView, problem: Problem) -> None:
    """Refuse a view that was made for a problem of another size.

    Args:
        view: to check.
        problem: the right one.

    Raises:
        InputError: gives both sizes.
    """
    seen, asked = (f"{p.num_ops} ops on {p.num_devices} devices" for p in (view.problem, problem))
    if seen != asked:
        raise InputError(f"view: of another problem, {seen}, not {asked}")


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Episodes:
    """A policy's episodes as drafts.

    Attributes:
        policy: that plays.
        view: of the problem.
        merged: place random groups of ops instead of single ops.
    """

    policy: Policy
    view: ProblemView
    merged: bool = False
    name: ClassVar[str] = "episode"

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw placements (see `Drafts.draw`); ``problem`` must be the view's."""
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
    """Anneal on estimates and execute only the result, repeatedly.

    Every other turn starts from the best placement so far, with its ops ranked by their start
    times. The other turns start from new drafts, one of each kind (several in the first turn), of
    which the best by estimates is taken. If a simulator ignores the order of ops, estimates are too
    coarse for annealing, and drafts are executed unchanged. On a real system annealing may take as
    long as an execution. Before it, two devices or two hosts may be exchanged, because executions
    have shown how fast they are.

    Attributes:
        drafts: kinds of drafts; empty: always start from the best placement so far.
        greedy: replaces the policy's episodes as a draft until something was executed.
        steps: of annealing before each execution; fewer on large graphs.
        at_most: executions of one turn.
        hot: first temperature, as in `baselines.Annealing`.
        cold: last temperature, as in `baselines.Annealing`.
        devices: whether to move ops to other devices, as in `baselines.Annealing`.
        share: of the whole budget; None: everything that is left.

    Source: searching a cheap model of an expensive objective before each evaluation, as in Jones,
    Schonlau, Welch, "Efficient global optimization of expensive black-box functions", Journal of
    Global Optimization 1998. Our model is given, not fitted.
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
        """Draw new drafts of each kind, for each way to use hosts; return the best by estimates."""
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
        """Anneal on estimates; a draft for a simulator in parts that are kept only if they help."""
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
        """Anneal on estimates; return the start if no placement is estimated to fit."""
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
    """Whether the annealed plan is worse once devices need not wait for ops in rank order.

    Estimates assume that a device waits for the next op in rank order, while a work-conserving
    device starts another. A second estimate without that assumption, and without contention of
    transfers, is about a lower bound of the execution (and equals it if the system has no
    contention). The larger of both estimates must be smaller than before. Neither placement may
    rank an op before its producers.

    Args:
        session: the simulator that executes.
        estimates: estimates placements.
        annealed: after annealing.
        start: before annealing.
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
    """The placement, unchanged or with two devices or hosts exchanged, by the best estimate."""
    device_BV = exchanges(estimates.problem.cluster, most, rng)[:, placement.device]
    priority_BV = np.broadcast_to(placement.priority, device_BV.shape)
    return best_by_estimates(estimates, [(device_BV, priority_BV)])[0]


def as_executed(session: SimulatorSession, found: ScoredPlacement) -> ScoredPlacement:
    """Rank the ops of a placement by their start times; no placement is returned unchanged.

    Estimates do not let ops overtake. With these ranks they are close to the execution; with other
    ranks, such as those at the end of a search, up to twice as long.

    Args:
        session: the simulator that executes.
        found: a placement or none.
    """
    if found.placement is None:
        return found
    placement = found.placement
    priority_V = ranked_by_start(session.trace(placement).op_start_s, placement.priority)
    return found._replace(placement=Placement.make(session.problem, placement.device, priority_V))


def ranked_by_start(
    start_V: NDArray[np.float64], priority_V: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return priorities [V] by start times; ties keep their order.

    Args:
        start_V: start of each op, seconds.
        priority_V: present rank of each op.
    """
    ranked_V = np.empty_like(priority_V)
    ranked_V[np.lexsort((priority_V, start_V))] = np.arange(len(priority_V))
    return ranked_V


def in_order(problem: Problem, found: ScoredPlacement) -> Placement:
    """Return the placement with ranks in which no op comes before its producers, for estimates.

    Args:
        problem: of the placement.
        found: the placement.
    """
    assert found.placement is not None
    taught = TaughtPlacement.of(problem, found.placement)
    device_BV, priority_BV = placements_of_steps(taught.op[None], taught.device[None])
    return Placement.make(problem, device_BV[0], priority_BV[0])
