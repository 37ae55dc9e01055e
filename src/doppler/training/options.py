"""Options of reinforcement learning (stages II and III), and the executions that they need."""

from dataclasses import dataclass, replace
from typing import Annotated, Self

from doppler.support.errors import InputError
from doppler.support.options import Amount, Batch, BatchOrNone, Count, Rates, Share, checked, one_of
from doppler.training.advantage import ADVANTAGES

# Largest factor of the entropy bonus in trainings that are longer than ``tuned_updates``.
_MOST_ENTROPY = 3.0


@checked
@dataclass(frozen=True, kw_only=True)
class ReinforcementOptions:
    """Options of REINFORCE on one problem or on many.

    Attributes:
        batch_episodes: episodes of one problem in an update; all use the same draw of jitter.
        batch_problems: problems drawn for each update, if there are several.
        try_every: updates between two executions of the greedy placement.
        exploration: None: actions are sampled from the policy. Else epsilon-greedy: the share of
            uniform choices at first, falling linearly to 0.
        advantage: a name in ``ADVANTAGES``.
        learning_rate: first and last rate of Adam, falling linearly. At 0 nothing is learned.
        network_rate: the rate of the policy's network as a share of the rate.
        entropy: weight of the entropy bonus, falling linearly to 0.
        merged_share: share of the updates whose episodes place groups of ops instead of single ops.
        returning_share: in the last batch, the share of episodes that return to the best placement
            so far. They repeat it except for a window of steps, which the policy decides anew. The
            length of the window is log-uniform. The share rises linearly from 0 in the first batch.
            These episodes give no gradient.
        returning_drafts: number of drafts of each of these episodes. Only the draft with the
            shortest estimated makespan is executed. 1: nothing is estimated.
        extra_candidates: number of episodes that place groups of ops, and also number of
            clusterings, that are executed in addition to an update's own episodes. They may become
            the best placement, but give no gradient.
        tuned_updates: the number of updates for which learning_rate and entropy were tuned, and
            during which extra candidates are executed; None: any number. A training that is k times
            longer has 1 / sqrt(k) of the rate and k times the entropy bonus, but at most three
            times.

    Source: see `reinforcement.Reinforcement`.
    """

    batch_episodes: Batch
    try_every: Count
    exploration: Share | None
    advantage: Annotated[str, one_of(ADVANTAGES)]
    learning_rate: Rates
    network_rate: Amount
    entropy: Amount
    tuned_updates: Count | None
    extra_candidates: BatchOrNone
    merged_share: Share = 0.0
    returning_share: Share = 0.0
    returning_drafts: Batch = 1
    batch_problems: Batch = 1

    def __post_init__(self) -> None:
        if self.advantage == "batch" and self.batch_episodes < 2:
            raise InputError(
                "algorithm.reinforcement.batch_episodes: advantage=batch needs two, got 1"
            )

    def num_returning(self, done: float) -> int:
        """Return how many episodes of a batch return to the best placement.

        The others are compared with each other, so at least two remain, or none.

        Args:
            done: share of the training that is over.
        """
        num = int(self.batch_episodes * self.returning_share * done)
        return min(num, max(0, self.batch_episodes - 2))

    def num_tuned(self, num_updates: int) -> int:
        """Return the number of first updates that execute extra candidates.

        Args:
            num_updates: of the training.
        """
        return min(num_updates, self.tuned_updates or num_updates)

    def tuned_for(self, num_updates: int) -> Self:
        """Return the options with the rate and entropy bonus for a training of this length.

        Args:
            num_updates: of the training.
        """
        longer = max(1, num_updates) / max(1, self.num_tuned(num_updates))
        first, last = self.learning_rate
        return replace(
            self,
            learning_rate=(first / longer**0.5, last / longer**0.5),
            entropy=self.entropy * min(longer, _MOST_ENTROPY),
        )

    def evaluations(self, num_updates: int, confirmations: int) -> int:
        """Return the executions of a training on one problem, including the last greedy placement.

        Args:
            num_updates: of the training; with 0 nothing is executed.
            confirmations: executions that confirm a promising placement; 0: one execution decides.
        """
        if num_updates == 0:
            return 0
        greedy = -(-num_updates // self.try_every) + 1
        return (
            num_updates * (self.batch_episodes + confirmations)
            + 2 * self.extra_candidates * self.num_tuned(num_updates)
            + greedy * max(1, confirmations)
        )

    def updates_within(self, evaluations: int, confirmations: int) -> int:
        """The largest number of updates on one problem that so many executions allow.

        Args:
            evaluations: executions that the training may use.
            confirmations: see `evaluations`.
        """
        num_updates = evaluations // self.batch_episodes
        while num_updates > 0 and self.evaluations(num_updates, confirmations) > evaluations:
            num_updates -= 1
        return num_updates
