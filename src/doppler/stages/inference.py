"""Searching with a trained policy: samples, and annealing from the best placement there is.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Sequence
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
    episodes for each placement that is executed, of a policy that has not trained on the problem;
    the shortest are executed, by the placement process's own estimate of their makespans, which is
    no evaluation. anneal: makes the annealing that has all other evaluations, from the best
    placement so far on.
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
        episodes = [policy.rollout(view, 1, 0.0, rng)]
        if self.drafts > 1:
            episodes.append(policy.rollout(view, self.drafts - 1, None, rng))
        device_BV, priority_BV = _shortest(view, episodes, 1)
        return Placement.make(view.problem, device_BV[0], priority_BV[0])

    def sample(
        self,
        policy: Policy,
        view: View,
        best: BestSoFar,
        evaluations: int,
        rng: np.random.Generator,
        *,
        drafts: int | None = None,
    ) -> None:
        """Sample as often as wanted, and as ``evaluations`` allow; drafts: other than the usual."""
        drafts = self.drafts if drafts is None else drafts
        num = min(self.samples + self.merged, evaluations - best.confirmations)
        episodes = [policy.rollout(view, drafts * self.samples, None, rng)] if self.samples else []
        episodes += [
            policy.rollout(merged_at_random(view, rng), drafts, None, rng)
            for _ in range(self.merged)
        ]
        if num > 0:
            best.measure(*_shortest(view, episodes, num), rng)

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


def _shortest(
    view: View, episodes: Sequence[Decisions], num: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Devices and priorities [num, V] of the shortest of some episodes by estimate, in order."""
    op_BV = np.concatenate([each.op for each in episodes])
    device_BV = np.concatenate([each.device for each in episodes])
    if num < len(op_BV):
        estimate_B = estimated_makespans(view.problem, op_BV, device_BV)
        kept = np.sort(np.argsort(estimate_B, kind="stable")[:num])
        op_BV, device_BV = op_BV[kept], device_BV[kept]
    return placements_of_steps(op_BV, device_BV)
