"""Searching with a trained policy: samples, and annealing from the best placement there is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler.baselines import Annealing
from doppler.episode import View, merged_at_random
from doppler.policies import Policy
from doppler.stages.best_so_far import BestSoFar
from doppler.stages.optimisation import check_at_least, check_count


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What a trained policy's placements are searched with, within one budget of evaluations.

    share: of the evaluations of stage II; training has the rest. samples: episodes that are
    sampled. merged: sampled ones that place clusters, of ops that heavy edges join. anneal: makes
    the annealing that has all other evaluations, from the best placement so far on.
    """

    share: float
    samples: int
    merged: int
    anneal: Callable[..., Annealing]

    def __post_init__(self) -> None:
        check_at_least("algorithm.inference.share", self.share, 0.0)
        check_count("algorithm.inference.samples", self.samples, 0)
        check_count("algorithm.inference.merged", self.merged, 0)

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
        """Sample, then polish; order: whether the system keeps priorities."""
        last = best.evaluations + evaluations
        self.sample(policy, view, best, evaluations, rng)
        self.polish(best, last - best.evaluations, order=order, rng=rng)

    def sample(
        self,
        policy: Policy,
        view: View,
        best: BestSoFar,
        evaluations: int,
        rng: np.random.Generator,
    ) -> None:
        """Sample as often as wanted, and as ``evaluations`` allow."""
        episodes = [policy.rollout(view, self.samples, None, rng)] if self.samples else []
        episodes += [
            policy.rollout(merged_at_random(view, rng), 1, None, rng) for _ in range(self.merged)
        ]
        num = min(self.samples + self.merged, evaluations - best.confirmations)
        if num > 0:
            placements = zip(*(decisions.placements() for decisions in episodes), strict=True)
            device_BV, priority_BV = (np.concatenate(rows)[:num] for rows in placements)
            best.measure(device_BV, priority_BV, rng)

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
