"""Stage I: imitation of a heuristic, or of what a search found.

Shape suffixes: B episodes, V ops.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from doppler.baselines import CriticalPath, Teacher
from doppler.env import ProblemView, advice
from doppler.policies import Decisions, Policy
from doppler.policies.weights import VERSION
from doppler.search import NO_EFFORT, NO_PLACEMENT, Effort, ScoredPlacement, seeded_generator
from doppler.support.errors import InputError
from doppler.support.options import Amount, Batch, Count, Rates, Seed, Share, checked
from doppler.training.updates import EpisodeTraining, finite

# What is left of the rate when it falls.
_FALL = 1 / 3
# A log-likelihood rises if it rises by this share, its mean over about so many updates.
_RISE, _SMOOTHED = 0.01, 5
# An op is decided as the teacher does, all but surely.
_SURE = -1e-3


class Plateau(NamedTuple):
    """Whether a log-likelihood still rises.

    Attributes:
        mean: over the last updates.
        best: the largest such mean.
        waited: updates since.
        falls: how often it has stayed for as long as the patience lasts.
    """

    mean: float = -math.inf
    best: float = -math.inf
    waited: int = 0
    falls: int = 0

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left to learn."""
        return self.mean > _SURE

    def after(self, log_likelihood: float, patience: int) -> "Plateau":
        """What is known after one more update."""
        mean = log_likelihood
        if math.isfinite(self.mean):
            mean = self.mean + (log_likelihood - self.mean) / _SMOOTHED
        if mean > self.best + _RISE * abs(self.best) or not math.isfinite(self.best):
            return Plateau(mean, mean, 0, self.falls)
        if self.waited + 1 >= patience:
            return Plateau(mean, max(mean, self.best), 0, self.falls + 1)
        return Plateau(mean, self.best, self.waited + 1, self.falls)


@checked
class Imitation(EpisodeTraining):
    """Maximise the log-likelihood of a teacher's decisions, at its own states or the policy's.

    policy: an nn.Module that is a Policy.
    view: the problem.
    teacher: gives fresh decisions, ties drawn anew, for every batch.
    episodes: at most.
    batch_episodes: per update.
    learning_rate: first and last of Adam. It falls linearly, or with ``patience`` in steps.
    network_rate: share of the rate at which the policy's network learns.
    patience: if the log-likelihood does not rise in so many updates, the rate falls to a third. The
        training ends when the rate would fall below the last one. None: it has all its episodes.
    entropy: weight of the entropy bonus, falling to 0.
    exploration: None: at the states that the teacher visits. Else at those of the policy's own
        episodes, in which this share of the choices is uniform at first, falling to 0, and all
        others are the most likely; only the critical path says what it would do there.
    seed: of everything random here.
    inherited: what it took the teacher to know what it teaches, and what was found by this;
        elapsed_s and the best placement go on from there.

    Source: DOPPLER (Yao et al., ICLR 2026), stage I, with exploration from 1
    (conf/algorithm/paper.yaml). Of tied choices the drawn one counts.
    """

    title = "stage I, imitation"
    options_key = "algorithm.imitation"

    def __init__(
        self,
        *,
        policy: Policy,
        view: ProblemView,
        teacher: Teacher,
        episodes: Count,
        batch_episodes: Batch,
        learning_rate: Rates,
        network_rate: Amount,
        entropy: Amount,
        seed: Seed,
        exploration: Share | None = None,
        patience: Count | None = None,
        inherited: tuple[Effort, ScoredPlacement] = (NO_EFFORT, NO_PLACEMENT),
    ) -> None:
        super().__init__()
        if exploration is not None:
            if not isinstance(teacher, CriticalPath):
                raise InputError(
                    "algorithm.imitation.exploration: only stage.teacher=critical_path says what "
                    f"it would do in the policy's own episodes, not {type(teacher).__name__}"
                )
            unused = np.random.default_rng(0)  # compiled before the clock starts
            advice(view, *teacher.decide(view.problem, 1, unused), unused)
        first, last = learning_rate
        if patience is not None and first < last:
            raise InputError(
                "algorithm.imitation.learning_rate: with patience the first rate must not be less "
                f"than the last, got {[first, last]}; patience=null lets rates rise"
            )
        self.exploration = exploration
        self.policy = policy
        self.view = view
        self.teacher = teacher
        self.batch_episodes = batch_episodes
        self.num_updates = max(1, episodes // batch_episodes)
        self.patience = patience
        self.plateau = Plateau()
        self.learning_rate = first, last
        self.network_rate = network_rate
        self.entropy = entropy
        self.inherited, self.found = inherited
        self.elapsed_s = self.inherited.seconds
        self.namespace = "stage_1"
        self.rng = seeded_generator(seed, "imitation")

    @property
    def best_s(self) -> float:
        """Seconds of the best placement that is known."""
        return self.found.seconds

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh decisions of the teacher."""
        problem = self.view.problem
        episodes = self._episodes()
        log_prob_B, entropy_B = self.policy.log_prob(self.view, episodes)
        log_likelihood = log_prob_B.mean() / problem.num_ops
        entropy = entropy_B.mean() / problem.num_ops
        self.note_update(
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "log_likelihood": log_likelihood.item(),
                "entropy": entropy.item(),
            }
        )
        if self.patience is not None:
            self.plateau = self.plateau.after(log_likelihood.item(), self.patience)
        return finite(-log_likelihood - self.entropy * self.remaining * entropy)

    @property
    def has_settled(self) -> bool:
        """Whether more updates would teach nothing more."""
        return self.patience is not None and (
            self.plateau.is_sure
            or self.rate_left(self.global_step) * self.learning_rate[0] < self.learning_rate[1]
        )

    def rate_left(self, step: int) -> float:
        """See EpisodeTraining; with patience it falls where nothing is learned any more."""
        if self.patience is None:
            return super().rate_left(step)
        return _FALL**self.plateau.falls

    def on_train_start(self) -> None:
        """See EpisodeTraining; an interrupted training may have ended before."""
        super().on_train_start()
        self.trainer.should_stop = self.has_settled

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.trainer.should_stop |= self.has_settled

    def _episodes(self) -> Decisions:
        """Those whose log-probability is the teacher's likelihood."""
        if self.exploration is None:
            taught = self.teacher.decide(self.view.problem, self.batch_episodes, self.rng)
            if all((decided == decided[0]).all() for decided in taught):
                taught = taught[0][:1], taught[1][:1]  # the mean of equal episodes is that of one
            return self.policy.follow(self.view, *taught)
        explore = self.exploration * self.remaining
        played = self.policy.rollout(self.view, self.batch_episodes, explore, self.rng)
        return replace(played, advised=advice(self.view, played.op, played.device, self.rng))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state."""
        checkpoint["doppler"] = {
            "version": VERSION,
            "rng": self.rng.bit_generator.state,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.inherited.evaluations,
            "best": self.found.plain(),
            "plateau": list(self.plateau),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from it."""
        self.rng.bit_generator.state = checkpoint["doppler"]["rng"]
        self.elapsed_s = checkpoint["doppler"]["elapsed_s"]
        self.plateau = Plateau(*checkpoint["doppler"]["plateau"])
