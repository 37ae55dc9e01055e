"""Policy gradient over many problems: one set of weights that is good at once on others.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.baselines import lower_bound
from doppler.episode import View, merged_at_random
from doppler.errors import InputError
from doppler.policies import Policy
from doppler.stages.advantage import batch_advantage
from doppler.stages.optimisation import (
    NO_EFFORT,
    Effort,
    EpisodeTraining,
    check_at_least,
    check_count,
    log_metrics,
    seeded_generator,
)
from doppler.system import Session

# The ratio that a placement counts which does not fit in memory.
INFEASIBLE = 100.0


class SetReinforcement(EpisodeTraining):
    """REINFORCE where each update plays some of many problems, drawn at random.

    policy: an nn.Module that is a Policy. views, sessions: of the problems to train on; held_out,
    held_out_sessions: of those that tell which weights are best, by the ratio of the greedy
    placement to the lower bound, the geometric mean. updates: in all, each of ``batch_problems``
    problems with ``episodes_each`` executed episodes; the held-out problems are tried every
    ``try_every`` updates. learning_rate, final_learning_rate: of Adam, falling linearly. entropy:
    weight of the entropy bonus, falling to 0. merged: share of the draws where episodes place
    groups of ops, merged at random. seed: of everything random here. on_best: called while the
    weights are the best so far. inherited: what it took to make the weights that training begins
    with; it goes on from there.

    Advantages are those within a batch, in units of its spread: no problem counts more than
    another because its seconds are longer or its graph larger.

    Source: ours; DOPPLER (Yao et al., ICLR 2026) trains on one graph and fine-tunes on others.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        views: Sequence[View],
        sessions: Sequence[Session],
        held_out: Sequence[View],
        held_out_sessions: Sequence[Session],
        updates: int,
        batch_problems: int,
        episodes_each: int,
        try_every: int,
        learning_rate: float,
        final_learning_rate: float,
        entropy: float,
        merged: float,
        seed: int,
        on_best: Callable[[], None],
        inherited: Effort = NO_EFFORT,
    ) -> None:
        super().__init__()
        where = "algorithm.problem_set"
        for key, value in (
            ("updates", updates),
            ("batch_problems", batch_problems),
            ("try_every", try_every),
        ):
            check_count(f"{where}.{key}", value, 1)
        check_count(f"{where}.episodes_each", episodes_each, 2)
        check_at_least(f"{where}.learning_rate", learning_rate, 1e-12)
        check_at_least(f"{where}.merged", merged, 0.0)
        if not views or not held_out:
            raise InputError("problems and held_out: at least one problem each")
        self.title = f"stage II on {len(views)} problems"
        self.policy = policy
        self.tasks = list(zip(views, sessions, strict=True))
        self.trials = list(zip(held_out, held_out_sessions, strict=True))
        self.num_updates = updates
        self.batch_problems, self.episodes_each = batch_problems, episodes_each
        self.batch_episodes = batch_problems * episodes_each
        self.try_every = try_every
        self.learning_rate = learning_rate
        self.final_learning_rate = final_learning_rate
        self.entropy, self.merged = entropy, merged
        self.on_best = on_best
        self.rng = seeded_generator(seed, "problem set")
        self.evaluations, self.elapsed_s = inherited.evaluations, inherited.seconds
        self.best_ratio = float("inf")

    @property
    def best_s(self) -> float:
        """None: seconds of different problems do not compare."""
        return float("inf")

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Now and then, before an update: how good are the weights where they do not train?"""
        if self.global_step % self.try_every == 0:
            self.try_held_out()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh episodes of some problems."""
        drawn = self.rng.integers(len(self.tasks), size=self.batch_problems)
        return torch.stack([self._loss(*self.tasks[task]) for task in drawn]).mean()

    def _loss(self, view: View, session: Session) -> Tensor:
        remaining = 1.0 - self.global_step / self.num_updates
        if self.rng.random() < self.merged:
            view = merged_at_random(view, self.rng)
        decisions = self.policy.rollout(view, self.episodes_each, None, self.rng)
        device_BV, priority_BV = decisions.placements()
        measurement = session.measure(device_BV, priority_BV, rng=self.rng)
        lack_B = measurement.lack(view.problem.arrays.memory_bytes)
        self.evaluations += len(device_BV)
        log_prob_B, entropy_B = self.policy.log_prob(view, decisions)
        advantage = batch_advantage(measurement.cost_s(), lack_B)
        advantage_B = torch.from_numpy(advantage).to(log_prob_B.dtype)
        num_ops = view.problem.num_ops
        entropy = entropy_B.mean() / num_ops
        return -(advantage_B * log_prob_B).mean() / num_ops - self.entropy * remaining * entropy

    def try_held_out(self) -> None:
        """Execute the greedy placements of the held-out problems; better weights are kept."""
        ratios = []
        for view, session in self.trials:
            placements = self.policy.rollout(view, 1, 0.0, self.rng).placements()
            seconds = float(session.measure(*placements, rng=self.rng).cost_s()[0])
            ratios.append(min(seconds / lower_bound(view.problem).seconds, INFEASIBLE))
        self.evaluations += len(ratios)
        ratio = float(np.exp(np.mean(np.log(ratios))))
        log_metrics(self, {"episodes": self.episodes_done, "held_out_ratio": ratio})
        if ratio < self.best_ratio:
            self.best_ratio = ratio
            self.on_best()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state and what the best weights are measured by."""
        checkpoint["doppler"] = {
            "rng": self.rng.bit_generator.state,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.evaluations,
            "best_ratio": self.best_ratio,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from them."""
        kept = checkpoint["doppler"]
        self.rng.bit_generator.state = kept["rng"]
        self.elapsed_s, self.evaluations = kept["elapsed_s"], kept["evaluations"]
        self.best_ratio = kept["best_ratio"]
