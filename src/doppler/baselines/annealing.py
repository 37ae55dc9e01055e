"""Simulated annealing over placements, with or without priorities."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from doppler.baselines.annealing_kernels import change, search, settle
from doppler.baselines.annealing_walk import MAX_DRAWN, ORDER_SHARE, Walk, WalkPlan, make_neighbours
from doppler.baselines.contract import SearchResult, TooFewError
from doppler.baselines.levels import b_level_priority
from doppler.baselines.naive import random_devices
from doppler.problem import Placement
from doppler.simulator import SimulatorSession
from doppler.simulator.state import State
from doppler.support.compute import chosen
from doppler.support.errors import InputError
from doppler.support.options import Batch, Count, Positive, checked
from doppler.system import Session

# Jitter of ``draws`` on a system without jitter, as in the evaluation protocol.
JITTER = 0.05
# A given placement is already good, so the first temperature is this share of ``hot``.
POLISHING = 0.1
# Number of ops executed between two checks for a stop.
_STRETCH = 2_000_000


@checked
@dataclass(frozen=True, kw_only=True)
class Annealing:
    """Simulated annealing: change devices or the order, and accept some worse placements.

    A move puts a group of ops on another device or changes one op's priority. Half of the moves
    start on the critical chain of the current execution if a simulator reports it. After a measured
    execution only its seconds are known, and ops are drawn in proportion to their work. If a
    simulator's devices run one op at a time, moves are judged before they are executed
    (longest_paths_kernels.py). The more steps are accepted, the more moves are made at once.

    Attributes:
        evaluations: total number of executions.
        order: whether to search priorities; otherwise ops keep the order of their b_level.
        starts: number of independent walks that share the evaluations. They run in parallel if the
            system allows it.
        draws: number of executions whose mean is the cost of a placement. With 2 or more they have
            jitter, the same for all placements, so that the result is robust. A simulator without
            jitter gets some for this, and the result is executed once more without it.
        hot: first temperature, as a share of the current makespan. It falls geometrically.
        cold: last temperature.
        devices: whether to search devices; they are not searched if no op has a choice.

    Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 1983. The
    moves are ours: groups as in Wolff, "Collective Monte Carlo updating for spin systems", Physical
    Review Letters 1989, and the critical chain as in van Laarhoven, Aarts, Lenstra, "Job shop
    scheduling by simulated annealing", Operations Research 1992.
    """

    evaluations: Count
    order: bool
    starts: Batch = 1
    draws: Batch = 1
    hot: Positive
    cold: Positive
    devices: bool = True

    def __post_init__(self) -> None:
        if self.evaluations < self.starts * self.draws:
            raise TooFewError(
                f"baseline.annealing.evaluations: at least {self.starts * self.draws}, one for "
                f"each of {self.draws} draws of {self.starts} starts, got {self.evaluations}"
            )
        if not (self.order or self.devices):
            raise InputError("baseline.annealing: order and devices are both false")
        if not self.cold <= self.hot:
            raise InputError(
                f"baseline.annealing: needs cold <= hot, got {self.cold} and {self.hot}"
            )

    @property
    def uses_order(self) -> bool:
        return self.order

    @property
    def needs_order(self) -> bool:
        """Whether priorities are searched; a system that ignores them would waste the moves."""
        return self.order

    def place(
        self, session: Session, rng: np.random.Generator, initial: Placement | None = None
    ) -> SearchResult:
        """Search for a placement (see `contract.Baseline.place`).

        Args:
            session: executes placements.
            rng: the only source of randomness.
            initial: where every walk begins; None: a placement of its own.
        """
        problem, lends_jitter = session.problem, self._lends_jitter(session)
        num_steps = (self.evaluations - lends_jitter) // self.draws
        jitter_seed = int(rng.integers(2**62))
        plan = self._plan(session, is_given=initial is not None)
        plans, walks = [], []
        for i in range(self.starts):
            each = (num_steps + i) // self.starts
            plans.append(plan._replace(seed=int(rng.integers(2**62)), num_steps=each))
            start = initial or Placement.make(
                problem, random_devices(problem, 1, rng)[0], b_level_priority(problem)
            )
            walks.append(Walk.begin(problem, start))
        if isinstance(session, SimulatorSession):
            walks = self._search_simulator(session, plans, walks, jitter_seed)
            session.evaluations += self.draws * sum(plan.num_steps for plan in plans)
        else:
            for plan, walk in zip(plans, walks, strict=True):
                self._search(session, plan, walk, jitter_seed, rng)
        best = min(walks, key=lambda walk: walk.status["best_s"][0])
        makespan_s = float(best.status["best_s"][0])
        if lends_jitter:
            told = session.measure(best.best_device[None], best.best_priority[None], rng=rng)
            makespan_s = float(told.cost_s()[0])
        return SearchResult(
            placement=Placement.make(problem, best.best_device, best.best_priority),
            makespan_s=makespan_s,
            evaluations=num_steps * self.draws + lends_jitter,
        )

    def _plan(self, session: Session, *, is_given: bool) -> WalkPlan:
        """The plan of all walks, without seed and steps; ``is_given``: whether a start is given."""
        problem = session.problem
        has_choice = (np.isfinite(problem.arrays.op_seconds).sum(axis=1) > 1).any()
        # Longest paths hold for devices that run one op at a time, and ignore memory.
        is_judged = not isinstance(session, SimulatorSession) or (
            session.execution.streams == 1 and session.tells_makespan
        )
        return WalkPlan(
            seed=0,
            num_steps=0,
            order=self.order,
            hot=float(max(self.cold, POLISHING * self.hot) if is_given else self.hot),
            cold=float(self.cold),
            near=make_neighbours(problem),
            order_share=ORDER_SHARE if self.devices and has_choice else 1.0,
            most_drawn=MAX_DRAWN if is_judged else 1,
        )

    def _lends_jitter(self, session: Session) -> bool:
        """Whether costs include jitter that the system does not have."""
        simulates = isinstance(session, SimulatorSession)
        return simulates and self.draws > 1 and not session.is_random

    def _search_simulator(
        self, session: SimulatorSession, plans: list[WalkPlan], walks: list[Walk], jitter_seed: int
    ) -> list[Walk]:
        """Run all walks at once, here or on other workers."""
        compute = chosen()
        if compute is not None and len(walks) > 1:
            with compute.pool(_Walker, self, session, jitter_seed) as pool:
                return pool.map("walk", list(zip(plans, walks, strict=True)))
        self.search_simulator(session, plans, walks, jitter_seed)
        return walks

    def search_simulator(
        self, session: SimulatorSession, plans: list[WalkPlan], walks: list[Walk], jitter_seed: int
    ) -> None:
        """Run all walks at once in compiled code; Python runs only between long stretches."""
        arrays, rules = session.problem.arrays, session.rules
        if self._lends_jitter(session):
            rules = rules._replace(op_noise=JITTER, transfer_noise=JITTER)
        seeds_R = np.random.default_rng(jitter_seed).integers(0, 2**62, size=self.draws)
        stretch = max(1, _STRETCH // session.problem.num_ops)
        knowns = [session.make_known() for _ in walks]
        if self.draws > 1:
            knowns = [known and known._replace(in_use=False) for known in knowns]

        def go_on(i: int, state: State, begin: int) -> None:
            search(
                session.engine,
                session.counts_memory,
                arrays,
                rules,
                plans[i],
                seeds_R,
                self.draws == 1,
                begin,
                min(begin + stretch, plans[i].num_steps),
                walks[i],
                knowns[i],
                state,
            )

        for begin in range(0, plans[-1].num_steps, stretch):
            session.in_parallel(partial(go_on, begin=begin), len(walks))

    def _search(
        self,
        session: Session,
        plan: WalkPlan,
        walk: Walk,
        jitter_seed: int,
        rng: np.random.Generator,
    ) -> None:
        """Run one walk step by step."""
        arrays = session.problem.arrays
        for step in range(plan.num_steps):
            if step > 0:
                change(arrays, plan, walk)
            measured = session.measure(
                walk.device[None],
                walk.priority[None],
                repeats=self.draws,
                rng=rng if self.draws == 1 else np.random.default_rng(jitter_seed),
            )
            walk.peak_bytes[:] = measured.peak_bytes[0]
            lacks_memory = (walk.peak_bytes > arrays.memory_bytes).any()
            failed = not (measured.feasible[0] or lacks_memory)
            settle(arrays, plan, step, np.inf if failed else measured.seconds[0].mean(), walk)


@dataclass(frozen=True, eq=False)
class _Walker:
    """What a worker needs to run walks."""

    annealing: Annealing
    session: SimulatorSession
    jitter_seed: int

    def walk(self, shared: None, plan: WalkPlan, walk: Walk) -> Walk:
        """Run one walk to its end."""
        self.annealing.search_simulator(self.session, [plan], [walk], self.jitter_seed)
        return walk
