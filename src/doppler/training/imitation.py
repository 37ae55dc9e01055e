"""Stage I: imitation of a heuristic, or of a placement that a search found.

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

# Factor by which the rate falls.
_FALL = 1 / 3
# Least relative rise of the log-likelihood that counts; number of updates that it is averaged over.
_RISE, _SMOOTHED = 0.01, 5
# Mean log-likelihood of an op from which the policy decides almost surely as the teacher does. In a
# large graph a single other decision would not show in the mean, so the whole episode must also be
# likelier than not: then the teacher's is the most likely choice in every recorded step. Above some
# thousand ops only a sample of steps is recorded.
_SURE, _LIKELY = -1e-3, -math.log(2.0)


class Plateau(NamedTuple):
    """Tracks whether a log-likelihood still rises.

    Attributes:
        mean: moving average over the last updates.
        best: largest moving average.
        waited: updates since the largest one.
        falls: how often it has not risen for as long as the patience, so that the rate fell.
    """

    mean: float = -math.inf
    best: float = -math.inf
    waited: int = 0
    falls: int = 0

    def is_sure(self, num_ops: int) -> bool:
        """Whether the policy decides almost surely as the teacher does.

        Args:
            num_ops: of an episode.
        """
        return self.mean > max(_SURE, _LIKELY / num_ops)

    def after(self, log_likelihood: float, patience: int) -> "Plateau":
        """Return the state after one more update.

        Args:
            log_likelihood: of the update, per op.
            patience: updates without a rise until the rate falls.
        """
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
    """Maximise the log-likelihood of a teacher's decisions, in its own states or in the policy's.

    Args:
        policy: an nn.Module that is a Policy.
        view: the problem.
        teacher: decides anew for every batch, with ties broken at random.
        episodes: maximum number.
        batch_episodes: episodes per update.
        learning_rate: first and last rate of Adam. It falls linearly, or in steps with
            ``patience``.
        network_rate: the rate of the policy's network as a share of the rate.
        patience: if the log-likelihood does not rise within so many updates, the rate falls to a
            third. The training ends when the rate would fall below the last one. None: it uses all
            episodes.
        entropy: weight of the entropy bonus, which falls linearly to 0.
        exploration: None: imitate in the states that the teacher visits. Else in those of the
            policy's own episodes, in which this share of the choices is uniform at first, falling
            to 0, and all others are the most likely. Only the critical path can advise in such
            states.
        seed: of all random numbers here.
        inherited: effort of the teacher, and the placement that it found; elapsed_s and the best
            placement continue from there.

    Source: DOPPLER (Yao et al., ICLR 2026), stage I, with exploration from 1
    (conf/algorithm/paper.yaml). If choices are tied, the drawn one counts.
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
        """Seconds of the best known placement."""
        return self.found.seconds

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """Return the loss of one update on fresh decisions of the teacher."""
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
        """Whether further updates would teach nothing."""
        return self.patience is not None and (
            self.plateau.is_sure(self.view.problem.num_ops)
            or self.rate_left(self.global_step) * self.learning_rate[0] < self.learning_rate[1]
        )

    def rate_left(self, step: int) -> float:
        """See `EpisodeTraining.rate_left`; with patience the rate falls when learning stops."""
        if self.patience is None:
            return super().rate_left(step)
        return _FALL**self.plateau.falls

    def on_train_start(self) -> None:
        """See `EpisodeTraining.on_train_start`; ends at once if the training had settled before."""
        super().on_train_start()
        self.trainer.should_stop = self.has_settled

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.trainer.should_stop |= self.has_settled

    def _episodes(self) -> Decisions:
        """Episodes whose log-probability is the teacher's likelihood."""
        if self.exploration is None:
            taught = self.teacher.decide(self.view.problem, self.batch_episodes, self.rng)
            if all((decided == decided[0]).all() for decided in taught):
                taught = taught[0][:1], taught[1][:1]  # equal episodes: one is enough
            return self.policy.follow(self.view, *taught)
        explore = self.exploration * self.remaining
        played = self.policy.rollout(self.view, self.batch_episodes, explore, self.rng)
        return replace(played, advised=advice(self.view, played.op, played.device, self.rng))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the random state."""
        checkpoint["doppler"] = {
            "version": VERSION,
            "rng": self.rng.bit_generator.state,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.inherited.evaluations,
            "best": self.found.plain(),
            "plateau": list(self.plateau),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the random state."""
        self.rng.bit_generator.state = checkpoint["doppler"]["rng"]
        self.elapsed_s = checkpoint["doppler"]["elapsed_s"]
        self.plateau = Plateau(*checkpoint["doppler"]["plateau"])
