"""Placement methods within seconds instead of evaluations: as much search as fits in the time.

How fast a search is depends on the graph and on the machine, so each is begun small, timed, and
then given most of the time that is left. Results under a time limit depend on the machine's speed:
equal seeds give equal placements only where the same number of evaluations fits.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doppler.baselines import (
    CPOP,
    ETF,
    HEFT,
    Annealing,
    Baseline,
    Clustering,
    CriticalPath,
    Random,
    RoundRobin,
    SearchResult,
    SingleDevice,
)
from doppler.episode import heavy_merged, make_view, merged_at_random
from doppler.errors import InputError
from doppler.policies import DualPolicy, Policy
from doppler.problem import Placement
from doppler.stages.checkpoints import PRETRAINED, load_policy_weights
from doppler.system import Session

# Evaluations of the first, timed, search; and the share of the time left that the next one gets.
_FIRST, _SHARE = 64, 0.7
# Less time than this share of all is not worth another search.
_REST = 0.03
# Of the time of a method that first looks around and then polishes.
_LOOKING_AROUND = 0.2
# conf/baseline/annealing.yaml, conf/policy/doppler.yaml
_TEMPERATURES = {"hot": 0.02, "cold": 0.0001}
_POLICY = {
    **{"encoder": "gated", "hidden": 32, "rounds": 3, "sel_hidden": 16, "plc_hidden": 32},
    **{"sel": "learned", "plc": "learned", "look_ahead": True},
}

# A search of about so many evaluations, from the best so far on.
Step = Callable[[int, SearchResult | None], SearchResult]


class Found(NamedTuple):
    """The best placement of a search, and what it took."""

    best: SearchResult
    evaluations: int
    seconds: float


@dataclass
class Search:
    """A search on one system, until its seconds are over.

    order: whether the system runs ready ops by their priority. best: what was found so far.
    """

    session: Session
    seconds: float
    rng: np.random.Generator
    order: bool
    best: SearchResult | None = None
    evaluations: int = 0

    def __post_init__(self) -> None:
        self._begin = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._begin

    def offer(self, found: SearchResult) -> None:
        """Keep it if it is better."""
        self.evaluations += found.evaluations
        if self.best is None or found.makespan_s < self.best.makespan_s:
            self.best = found

    def repeat(self, step: Step, until_s: float) -> None:
        """Search again and again, each time for most of the time that is left."""
        num = _FIRST
        while True:
            begin = time.perf_counter()
            self.offer(step(num, self.best))
            each_s = (time.perf_counter() - begin) / num
            left_s = until_s - self.elapsed_s
            if left_s < _REST * self.seconds or left_s * _SHARE < each_s:
                return
            num = max(1, int(left_s * _SHARE / each_s))

    def anneal(self, until_s: float) -> None:
        """Annealing, from the best so far if there is one; a walk on every core that there is."""
        cores = len(os.sched_getaffinity(0))

        def step(num: int, best: SearchResult | None) -> SearchResult:
            method = Annealing(
                evaluations=num, order=self.order, starts=min(num, cores), draws=1, **_TEMPERATURES
            )
            return method.place(self.session, self.rng, best and best.placement)

        self.repeat(step, until_s)

    def cluster(self, until_s: float) -> None:
        """Clusterings, at random."""

        def step(num: int, best: SearchResult | None) -> SearchResult:
            return Clustering(evaluations=num).place(self.session, self.rng)

        self.repeat(step, until_s)

    def sample(self, policy: Policy, until_s: float) -> None:
        """A policy's greedy placement, then samples of it, in turns with heavy edges merged."""
        view = heavy_merged(make_view(self.session.problem))

        def step(num: int, best: SearchResult | None) -> SearchResult:
            if best is None:
                episodes = [policy.rollout(view, 1, 0.0, self.rng)]
            else:
                views = [view, merged_at_random(view, self.rng)]
                episodes = [policy.rollout(v, -(-num // 2), None, self.rng) for v in views]
            placements = zip(*(one.placements() for one in episodes), strict=True)
            device_BV, priority_BV = (np.concatenate(rows) for rows in placements)
            cost_B = self.session.measure(device_BV, priority_BV, rng=self.rng).cost_s()
            b = int(cost_B.argmin())
            placement = Placement.make(self.session.problem, device_BV[b], priority_BV[b])
            return SearchResult(
                placement=placement, makespan_s=float(cost_B[b]), evaluations=len(cost_B)
            )

        self.repeat(step, until_s)


ONE_SHOT: dict[str, Callable[[], Any]] = {
    "critical_path": lambda: CriticalPath(runs=50),
    "heft": lambda: HEFT(runs=50),
    "cpop": lambda: CPOP(runs=50),
    "etf": lambda: ETF(runs=50),
    "random": lambda: Random(samples=50),
    "round_robin": RoundRobin,
    "single_device": SingleDevice,
}
METHODS = ("auto", "annealing", "clustering", "policy", *ONE_SHOT)


def search(
    session: Session,
    *,
    method: str | Baseline,
    policy: Policy | None,
    seconds: float,
    order: bool,
    rng: np.random.Generator,
) -> Found:
    """The best placement that a method finds in so many seconds.

    Args:
        session: of the system to place for.
        method: one of `METHODS`, or a baseline of the caller's own, which takes the time it takes.
        policy: for ``policy``.
        seconds: of search. Of ``auto``, a fifth goes to clusterings and the rest to annealing from
            the best of them; ``policy`` does the same with its samples.
        order: whether the system runs ready ops by their priority.
        rng: all randomness but that of the clock.
    """
    if isinstance(method, str):
        _warm_up(session)
    run = Search(session, seconds, rng, order)
    if not isinstance(method, str):
        run.offer(method.place(session, rng))
    elif method == "auto":
        run.cluster(_LOOKING_AROUND * seconds)
        run.anneal(seconds)
    elif method == "policy":
        assert policy is not None
        run.sample(policy, _LOOKING_AROUND * seconds)
        run.anneal(seconds)
    elif method == "annealing":
        run.anneal(seconds)
    elif method == "clustering":
        run.cluster(seconds)
    else:
        run.offer(ONE_SHOT[method]().place(session, rng))
    assert run.best is not None
    return Found(run.best, run.evaluations, run.elapsed_s)


def check_method(method: str | Baseline, policy: Policy | str | Path | None) -> Policy | None:
    """The policy that a method needs: given, from a checkpoint, or the one of the package.

    Raises:
        InputError: no such method; or weights of another kind of policy.
    """
    if isinstance(method, str) and method not in METHODS:
        raise InputError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if method != "policy":
        return None
    if policy is not None and not isinstance(policy, str | Path):
        return policy
    made = DualPolicy(**_POLICY)
    load_policy_weights(made, PRETRAINED if policy is None else policy)
    return made


def _warm_up(session: Session) -> None:
    """Compile what searches run, so that the first of them is not charged for it."""
    rng = np.random.default_rng(0)
    best = Clustering(evaluations=1).place(session, rng)
    for order in (False, True):
        method = Annealing(evaluations=2, order=order, starts=1, draws=1, **_TEMPERATURES)
        method.place(session, rng, best.placement)
