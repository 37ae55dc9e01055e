"""Stage I: imitation of a heuristic, or of what a search found.

Shape suffixes: B episodes, V ops.
"""

from typing import Any

from torch import Tensor

from doppler.baselines import Teacher
from doppler.episode import View
from doppler.options import Amount, Batch, Count, Rates, Seed, checked
from doppler.policies import Policy
from doppler.policies.weights import VERSION
from doppler.search import NO_EFFORT, NOTHING, Effort, Found, seeded_generator
from doppler.training.updates import EpisodeTraining, finite


@checked
class Imitation(EpisodeTraining):
    """Maximise the log-likelihood of a teacher's decisions at the states that the teacher visits.

    policy: an nn.Module that is a Policy.
    view: the problem.
    teacher: gives fresh decisions, ties drawn anew, for every batch.
    episodes: in all.
    batch_episodes: per update.
    learning_rate: first and last of Adam, falling linearly.
    entropy: weight of the entropy bonus, falling to 0.
    seed: of everything random here.
    inherited: what it took the teacher to know what it teaches; elapsed_s goes on from there.
    found: by this; training goes on from there too.

    Source: DOPPLER (Yao et al., ICLR 2026), stage I. There the policy's own epsilon-greedy
    episodes choose the states; here the teacher's do, and of tied choices the drawn one counts.
    """

    title = "stage I, imitation"
    options = "algorithm.imitation"

    def __init__(
        self,
        *,
        policy: Policy,
        view: View,
        teacher: Teacher,
        episodes: Count,
        batch_episodes: Batch,
        learning_rate: Rates,
        entropy: Amount,
        seed: Seed,
        inherited: Effort = NO_EFFORT,
        found: Found = NOTHING,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.view = view
        self.teacher = teacher
        self.batch_episodes = batch_episodes
        self.num_updates = max(1, episodes // batch_episodes)
        self.learning_rate = learning_rate[0], learning_rate[1]
        self.entropy = entropy
        self.inherited = inherited
        self.elapsed_s = inherited.seconds
        self.rng = seeded_generator(seed, "imitation")
        self.found = found

    @property
    def best_s(self) -> float:
        """Seconds of the best placement that is known."""
        return self.found.seconds

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh decisions of the teacher."""
        problem = self.view.problem
        op_BV, device_BV = self.teacher.decide(problem, self.batch_episodes, self.rng)
        episodes = self.policy.follow(self.view, op_BV, device_BV)
        log_prob_B, entropy_B = self.policy.log_prob(self.view, episodes)
        log_likelihood = log_prob_B.mean() / problem.num_ops
        entropy = entropy_B.mean() / problem.num_ops
        self.log_update(
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "log_likelihood": log_likelihood.item(),
                "entropy": entropy.item(),
            }
        )
        return finite(-log_likelihood - self.entropy * self.remaining * entropy)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state."""
        checkpoint["doppler"] = {
            "version": VERSION,
            "rng": self.rng.bit_generator.state,
            "elapsed_s": self.elapsed_s,
            "evaluations": self.inherited.evaluations,
            "best": self.found.plain(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from it."""
        self.rng.bit_generator.state = checkpoint["doppler"]["rng"]
        self.elapsed_s = checkpoint["doppler"]["elapsed_s"]
