"""Searching with a trained policy: samples, and annealing from the best placement there is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler.baselines import Annealing
from doppler.episode import View, merged_at_random
from doppler.policies import Policy
from doppler.stages.best_so_far import BestSoFar
from doppler.stages.optimisation import check_at_least


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
        for key in ("share", "samples", "merged"):
            check_at_least(f"algorithm.inference.{key}", getattr(self, key), 0)

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
        views = [(view, self.samples)]
        views += [(merged_at_random(view, rng), 1) for _ in range(self.merged)]
        episodes = [policy.rollout(seen, num, None, rng).placements() for seen, num in views if num]
        if episodes:
            device_BV, priority_BV = map(np.concatenate, zip(*episodes, strict=True))
            num = min(len(device_BV), evaluations - best.confirmations)
            if num > 0:
                best.measure(device_BV[:num], priority_BV[:num], rng)

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
        if best.confirmations:
            best.confirm(found.placement)
        else:
            best.offer(found.placement, found.makespan_s)
