"""Searching with a trained policy: samples, and annealing from the best placement there is.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing, placements_of_steps
from doppler.episode import View, estimated_makespans, merged_at_random
from doppler.policies import Decisions, Policy
from doppler.problem import Placement
from doppler.stages.best_so_far import BestSoFar
from doppler.stages.optimisation import check_at_least, check_count


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What a trained policy's placements are searched with, within one budget of evaluations.

    share: of the evaluations of stage II; training has the rest. samples: episodes that are
    sampled. merged: sampled ones that place clusters, of ops that heavy edges join. drafts:
    episodes played for each that stage=inference executes, the shortest by `estimated_makespans`;
    stage II executes every sample. anneal: makes the annealing that has all other evaluations, from
    the best placement so far on.
    """

    share: float
    samples: int
    merged: int
    drafts: int
    anneal: Callable[..., Annealing]

    def __post_init__(self) -> None:
        check_at_least("algorithm.inference.share", self.share, 0.0)
        check_count("algorithm.inference.samples", self.samples, 0)
        check_count("algorithm.inference.merged", self.merged, 0)
        check_count("algorithm.inference.drafts", self.drafts, 1)

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
        self.sample(policy, view, best, evaluations, rng, drafts=1)
        self.polish(best, last - best.evaluations, order=order, rng=rng)

    def first(self, policy: Policy, view: View, rng: np.random.Generator) -> Placement:
        """Of the greedy episode and as many sampled ones as make up the drafts, the shortest."""
        explorations = [(1, 0.0), (self.drafts - 1, None)]
        op_BV, device_BV = _in_a_row(
            policy.rollout(view, num, explore, rng) for num, explore in explorations if num
        )
        best = _shortest(view, op_BV, device_BV, 1)
        device_BV, priority_BV = placements_of_steps(op_BV[best], device_BV[best])
        return Placement.make(view.problem, device_BV[0], priority_BV[0])

    def sample(
        self,
        policy: Policy,
        view: View,
        best: BestSoFar,
        evaluations: int,
        rng: np.random.Generator,
        *,
        drafts: int,
    ) -> None:
        """Sample as often as wanted, and execute of the samples as many as ``evaluations`` allow.

        drafts: episodes for each wanted one; where there are several, the shortest are executed.
        """
        num = min(self.samples + self.merged, evaluations - best.confirmations)
        if num < 1:
            return

        def play() -> Iterator[Decisions]:
            for _ in range(drafts if self.samples else 0):
                yield policy.rollout(view, self.samples, None, rng)
            for _ in range(self.merged):
                yield policy.rollout(merged_at_random(view, rng), drafts, None, rng)

        op_BV, device_BV = _in_a_row(play())
        kept = slice(num) if drafts == 1 else _shortest(view, op_BV, device_BV, num)
        best.measure(*placements_of_steps(op_BV[kept], device_BV[kept]), rng)

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


def _in_a_row(episodes: Iterable[Decisions]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ops and devices [B, V] of several decisions. Not kept: their records, which are large."""
    op_BV, device_BV = zip(*((each.op, each.device) for each in episodes), strict=True)
    return np.concatenate(op_BV), np.concatenate(device_BV)


def _shortest(
    view: View, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64], num: int
) -> NDArray[np.int64]:
    """The ``num`` shortest of some episodes by estimate, in the order in which they were played."""
    estimate_B = estimated_makespans(view.problem, op_BV, device_BV)
    return np.sort(np.argsort(estimate_B, kind="stable")[:num])
