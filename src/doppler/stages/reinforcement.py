"""Stages II and III: policy gradient on the seconds of a system.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.baselines import TaughtPlacement, draw_clusterings
from doppler.episode import View, merged_at_random
from doppler.errors import InputError
from doppler.policies import Decisions, Policy
from doppler.problem import Placement
from doppler.stages.advantage import ADVANTAGES, NO_PAST, Past
from doppler.stages.best_so_far import NOTHING, BestSoFar, Found
from doppler.stages.optimisation import (
    NO_EFFORT,
    Effort,
    EpisodeTraining,
    check_at_least,
    check_count,
    log_metrics,
    seeded_generator,
)

# How much more than ``entropy`` long training has, at most.
_MOST_ENTROPY = 3.0


class Trained(NamedTuple):
    """The best placement that training has found, and what it took."""

    found: Found
    evaluations: int
    elapsed_s: float


class Reinforcement(EpisodeTraining):
    """REINFORCE with the makespan as the only reward.

    policy: an nn.Module that is a Policy. best: executes placements, on a simulated or a real
    system. evaluations: executions in all; each update takes batch_episodes, and every
    ``greedy_every`` updates one more for the greedy placement; confirmations, where the system
    needs them, are for the greedy placement and for the best episode of each update. All episodes
    of an update are executed under the same fresh draw of jitter.
    exploration: None samples from the policy; else the first probability of a uniform choice in
    place of the most likely one, falling to 0. advantage: one of ADVANTAGES.
    learning_rate, final_learning_rate: of Adam, falling linearly. entropy: weight of the entropy
    bonus, falling to 0. tuned_updates: how many updates these three are for; None: any number.
    Longer training learns slower, by the root of how much longer, and explores more, with as much
    more entropy, up to threefold. merged_episodes, clusterings: of the first ``tuned_updates``
    updates (None: of all), beside the other episodes, if the policy keeps groups together. The
    former place groups of ops that heavy edges join, another merging for each update; the latter
    are candidates of the baseline of that name, which a list scheduler places. What they find may
    be the best placement so far, the gradient is without them. imitate_best: weight of imitating
    the best placement so far, rising from 0: what sampling has found the policy then decides
    without drawing. seed: of everything random here. on_best_greedy: called while the weights are
    those of a new best greedy placement. inherited: what it took to make the weights that training
    begins with; elapsed_s goes on counting from there.

    trained: what training alone has found, once it has ended; None before.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III: exploration from 0.2, the running
    mean as advantage, one episode an update (conf/algorithm/paper.yaml). What measures better is
    the default: episodes sampled from the policy, advantages within a batch, self-imitation (Oh,
    Guo, Singh, Lee, ICML 2018, here of the best placement alone), merged episodes and clusterings
    (on 8 devices, where single decisions seldom bring together what belongs together). Deviations
    in either: no discount of the only reward; the gradient is that of the softmax's log-probability
    of the choices taken, exploring ones included (as in the released code).
    """

    def __init__(
        self,
        *,
        title: str,
        policy: Policy,
        view: View,
        best: BestSoFar,
        evaluations: int,
        batch_episodes: int,
        greedy_every: int,
        exploration: float | None,
        advantage: str,
        learning_rate: float,
        final_learning_rate: float,
        entropy: float,
        tuned_updates: int | None,
        merged_episodes: int,
        clusterings: int,
        imitate_best: float,
        seed: int,
        on_best_greedy: Callable[[], None],
        inherited: Effort = NO_EFFORT,
    ) -> None:
        super().__init__()
        where = "algorithm.reinforcement"
        for key, value in (("batch_episodes", batch_episodes), ("greedy_every", greedy_every)):
            check_count(f"{where}.{key}", value, 1)
        check_at_least(f"{where}.learning_rate", learning_rate, 1e-12)
        if exploration is not None:
            check_at_least(f"{where}.exploration", exploration, 0.0)
        if advantage not in ADVANTAGES:
            raise InputError(
                f"{where}.advantage: {advantage!r} is not one of {', '.join(ADVANTAGES)}"
            )
        if tuned_updates is not None:
            check_count(f"{where}.tuned_updates", tuned_updates, 1)
        check_count(f"{where}.merged_episodes", merged_episodes, 0)
        check_count(f"{where}.clusterings", clusterings, 0)
        check_at_least(f"{where}.imitate_best", imitate_best, 0.0)
        check_count("budget.evaluations", evaluations, 1)
        self.title = title
        self.policy = policy
        self.view = view
        self.best = best
        self.batch_episodes = batch_episodes
        self.greedy_every = greedy_every
        self.merged_episodes = merged_episodes if policy.keeps_groups else 0
        self.clusterings = clusterings if policy.keeps_groups else 0
        self.tuned_updates = tuned_updates
        self.num_updates = evaluations // batch_episodes
        while self.num_updates > 0 and self.evaluations_used > evaluations:
            self.num_updates -= 1  # greedy executions and confirmations are paid for too
        if self.num_updates < 1:
            raise InputError(
                f"budget.evaluations: what is left to train with, {evaluations}, is less than one "
                f"batch of {batch_episodes} takes, confirmations included"
            )
        self.exploration = exploration
        self.advantage = ADVANTAGES[advantage]
        longer = self.num_updates / self.num_tuned_updates
        self.learning_rate = learning_rate / longer**0.5
        self.final_learning_rate = final_learning_rate / longer**0.5
        self.entropy = entropy * min(longer, _MOST_ENTROPY)
        self.imitate_best = imitate_best
        self.inherited = inherited
        self.elapsed_s = inherited.seconds
        self.on_best_greedy = on_best_greedy
        self.rng = seeded_generator(seed, "reinforcement")
        self.past = NO_PAST
        self.greedy = NOTHING
        self.trained: Trained | None = None

    @property
    def best_s(self) -> float:
        """Seconds of the best placement so far."""
        return self.best.seconds

    @property
    def evaluations_used(self) -> int:
        """Executions that the whole training takes, the greedy one at its end included."""
        num_greedy = -(-self.num_updates // self.greedy_every) + 1
        confirmed = self.best.confirmations * self.num_updates
        grouped = (self.merged_episodes + self.clusterings) * self.num_tuned_updates
        return self.num_episodes + grouped + confirmed + num_greedy * self.best.num_confirming

    @property
    def num_tuned_updates(self) -> int:
        """Updates that the settings are for, the first; only these place groups.

        Longer training explores by itself.
        """
        return min(self.num_updates, self.tuned_updates or self.num_updates)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Now and then, before an update: what would the policy do if it had to decide?"""
        if self.global_step % self.greedy_every == 0:
            self.try_greedy()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh episodes."""
        step, num_ops = self.global_step, self.view.problem.num_ops
        remaining = 1.0 - step / self.num_updates
        explore = None if self.exploration is None else self.exploration * remaining
        decisions = self.policy.rollout(self.view, self.batch_episodes, explore, self.rng)
        placements = [decisions.placements()]
        if step < self.num_tuned_updates:
            placements += self._grouped(explore)
        device_BV, priority_BV = map(np.concatenate, zip(*placements, strict=True))
        measurement = self.best.measure(device_BV, priority_BV, self.rng)
        own = slice(self.batch_episodes)
        cost_B = measurement.cost_s()[own]
        lack_B = measurement.lack(self.view.problem.arrays.memory_bytes)[own]
        best = self._decisions_of_best()
        log_prob_B, entropy_B = self.policy.log_prob(self.view, decisions, *best)
        advantage_B = torch.from_numpy(self.advantage(cost_B, lack_B, self.past))
        self.past = self.past.with_batch(cost_B)
        entropy = entropy_B[own].mean() / num_ops
        feasible_B = cost_B[np.isfinite(cost_B)]
        log_metrics(
            self,
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "mean_s": float(feasible_B.mean()) if len(feasible_B) else float("inf"),
                "min_s": float(cost_B.min()),
                "best_s": self.best.seconds,
                "greedy_s": self.greedy.seconds,
                "entropy": entropy.item(),
            },
        )
        gain = (advantage_B.to(log_prob_B.dtype) * log_prob_B[own]).mean() / num_ops
        loss = -gain - self.entropy * remaining * entropy
        if best:
            log_prob = log_prob_B[self.batch_episodes :].mean()
            loss = loss - self.imitate_best * (1.0 - remaining) * log_prob / num_ops
        return loss

    def _grouped(self, explore: float | None) -> list[tuple[NDArray, NDArray]]:
        """Placements of groups, by the policy and by a list scheduler."""
        found = []
        if self.merged_episodes:
            seen = merged_at_random(self.view, self.rng)
            merged = self.policy.rollout(seen, self.merged_episodes, explore, self.rng)
            found.append(merged.placements())
        if self.clusterings:
            drawn = draw_clusterings(self.view.problem, self.clusterings, self.rng)
            found.append(drawn.placements())
        return found

    def _decisions_of_best(self) -> list[Decisions]:
        """The best placement so far as the policy would decide on it, if it is to be imitated."""
        if self.imitate_best == 0.0 or self.best.placement is None:
            return []
        problem = self.view.problem
        taught = TaughtPlacement.of(problem, self.best.placement).decide(problem, 1, self.rng)
        return [self.policy.follow(self.view, *taught)]

    def try_greedy(self) -> None:
        """Execute the greedy placement of the present weights; the best so far is kept."""
        device_BV, priority_BV = self.policy.rollout(self.view, 1, 0.0, self.rng).placements()
        placement = Placement.make(self.view.problem, device_BV[0], priority_BV[0])
        seconds = self.best.confirm(placement)
        # The first greedy placement counts even if it is infeasible: best.ckpt must exist.
        if self.greedy.placement is None or seconds < self.greedy.seconds:
            self.greedy = Found(placement, seconds)
            self.on_best_greedy()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state and the best so far."""
        checkpoint["doppler"] = {
            "rng": self.rng.bit_generator.state,
            "best": self.best.state(),
            "greedy": self.greedy.plain(),
            "elapsed_s": self.elapsed_s,
            "evaluations": self.best.evaluations,
            "past": tuple(self.past),
            "trained": self.trained and (self.trained.found.plain(), *self.trained[1:]),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from them."""
        kept = checkpoint["doppler"]
        self.rng.bit_generator.state = kept["rng"]
        self.best.restore(kept["best"])
        self.greedy = Found.restored(kept["greedy"], self.view.problem)
        self.elapsed_s = kept["elapsed_s"]
        self.past = Past(*kept["past"])
        if kept["trained"] is not None:
            found, evaluations, elapsed_s = kept["trained"]
            self.trained = Trained(Found.restored(found, self.view.problem), evaluations, elapsed_s)
