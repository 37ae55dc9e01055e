"""Searching with a trained policy: samples, and annealing from the best placement there is.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing, placements_of_steps
from doppler.episode import Merging, View, estimated_makespans
from doppler.policies import Decisions, Policy
from doppler.problem import Placement
from doppler.stages.best_so_far import BestSoFar
from doppler.stages.optimisation import check_at_least, check_count

# How many mergings later rounds of samples begin from.
_MODELS = 3


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How often a policy is sampled, and what of it is executed.

    samples: executed episodes. merged: executed ones that place groups, of ops that heavy edges
    join. drafts: episodes played for each that is executed, the shortest by `estimated_makespans`;
    1: all that are played are executed. rounds: in which merged ones are played; from the second on
    they merge much as the best so far did.
    """

    samples: int
    merged: int
    drafts: int
    rounds: int

    def check(self, where: str) -> None:
        """Raise an InputError that names what makes no sense."""
        for key, least in (("samples", 0), ("merged", 0), ("drafts", 1), ("rounds", 1)):
            check_count(f"{where}.{key}", getattr(self, key), least)


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What a trained policy's placements are searched with, within one budget of evaluations.

    share: of the evaluations of stage II; training has the rest. trained: the sampling of a policy
    that has trained on the problem, after stage II. unseen: that of stage=inference, of a policy
    that has not. anneal: makes the annealing that has all other evaluations, from the best
    placement so far on.
    """

    share: float
    trained: Sampling
    unseen: Sampling
    anneal: Callable[..., Annealing]

    def __post_init__(self) -> None:
        check_at_least("algorithm.inference.share", self.share, 0.0)
        self.trained.check("algorithm.inference.trained")
        self.unseen.check("algorithm.inference.unseen")

    def evaluations_of(self, evaluations: int) -> int:
        """How many of the evaluations of stage II are not for training."""
        return int(self.share * evaluations)

    def search(
        self,
        policy: Policy,
        view: View,
        best: BestSoFar,
        evaluations: int,
        *,
        order: bool,
        rng: np.random.Generator,
    ) -> None:
        """With a policy that has trained on the problem: sample, then polish.

        order: whether the system keeps priorities.
        """
        last = best.evaluations + evaluations
        sample(policy, view, self.trained, best, evaluations, rng)
        self.polish(best, last - best.evaluations, order=order, rng=rng)

    def polish(
        self, best: BestSoFar, evaluations: int, *, order: bool, rng: np.random.Generator
    ) -> None:
        """Anneal from the best placement so far; order: whether the system keeps priorities."""
        draws = best.num_confirming
        left = evaluations - best.confirmations
        if left < draws:
            return
        annealing = self.anneal(evaluations=left, order=order, draws=draws)
        found = annealing.place(best.session, rng, initial=best.placement)
        best.evaluations += found.evaluations
        best.offer(found.placement, found.makespan_s)


def place_at_once(policy: Policy, view: View, drafts: int, rng: np.random.Generator) -> Placement:
    """Of the greedy episode and as many sampled ones as make up the drafts, the shortest."""
    explorations = [(1, 0.0), (drafts - 1, None)]
    op_BV, device_BV = _in_a_row(
        [_steps(policy.rollout(view, num, explore, rng)) for num, explore in explorations if num]
    )
    best = _shortest(view, op_BV, device_BV, 1)
    device_BV, priority_BV = placements_of_steps(op_BV[best], device_BV[best])
    return Placement.make(view.problem, device_BV[0], priority_BV[0])


def sample(
    policy: Policy,
    view: View,
    sampling: Sampling,
    best: BestSoFar,
    evaluations: int,
    rng: np.random.Generator,
) -> None:
    """Execute samples, as many as wanted and as ``evaluations`` allow."""
    left = min(sampling.samples + sampling.merged, evaluations - best.confirmations)
    drafts, tried = sampling.drafts, list[tuple[float, Merging]]()
    for i in range(sampling.rounds):
        samples = 0 if i else sampling.samples
        merged = len(range(i, sampling.merged, sampling.rounds))
        num = min(samples + merged, left)
        if num < 1:
            return
        left -= num
        models = [merging for _, merging in sorted(tried, key=itemgetter(0))[:_MODELS]]
        mergings: list[Merging] = []
        plays = [
            _steps(policy.rollout(view, samples, None, rng))
            for _ in range(drafts if samples else 0)
        ]
        for j in range(merged):
            if models:
                mergings.append(models[j % len(models)].near(view.problem, rng))
            else:
                mergings.append(Merging.at_random(view.problem, rng))
            plays.append(_steps(policy.rollout(mergings[-1].of(view), drafts, None, rng)))
        op_BV, device_BV = _in_a_row(plays)
        kept = np.arange(num) if drafts == 1 else _shortest(view, op_BV, device_BV, num)
        measurement = best.measure(*placements_of_steps(op_BV[kept], device_BV[kept]), rng)
        for row, seconds in zip(kept - samples * drafts, measurement.cost_s(), strict=True):
            if row >= 0:
                tried.append((float(seconds), mergings[row // drafts]))


_Steps = tuple[NDArray[np.int64], NDArray[np.int64]]


def _steps(decisions: Decisions) -> _Steps:
    """Ops and devices [B, V] of decisions. Their record, which is large, is not kept."""
    return decisions.op, decisions.device


def _in_a_row(plays: Sequence[_Steps]) -> _Steps:
    op_BV, device_BV = (np.concatenate(rows) for rows in zip(*plays, strict=True))
    return op_BV, device_BV


def _shortest(
    view: View, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64], num: int
) -> NDArray[np.int64]:
    """The ``num`` shortest of some episodes by estimate, in the order in which they were played."""
    estimate_B = estimated_makespans(view.problem, op_BV, device_BV)
    return np.sort(np.argsort(estimate_B, kind="stable")[:num])
