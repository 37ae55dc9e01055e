"""How stages II and III learn: the options of the policy gradient, and what they cost."""

from dataclasses import dataclass, replace
from typing import Annotated, Self

from doppler.support.errors import InputError
from doppler.support.options import Amount, Batch, BatchOrNone, Count, Rates, Share, checked, one_of
from doppler.training.advantage import ADVANTAGES

# How much more than ``entropy`` long training has, at most.
_MOST_ENTROPY = 3.0


@checked
@dataclass(frozen=True, kw_only=True)
class Learning:
    """Options of REINFORCE on one problem or many.

    batch_problems: drawn for each update where there are more.
    batch_episodes: of each of them, executed under the same fresh draw of jitter.
    try_every: updates between two trials of the greedy placement.
    exploration: None samples from the policy; else the first probability of a uniform choice in
        place of the most likely one, falling to 0.
    advantage: one of ADVANTAGES.
    learning_rate: first and last of Adam, falling linearly; of 0 nothing is learned.
    entropy: weight of the entropy bonus, falling to 0.
    tuned_updates: how many updates rates and entropy are for; None: any number. Longer training
        learns slower, by the root of how much longer, and has as much more entropy, up to
        threefold.
    beside: of the first ``tuned_updates`` updates (None: of all): so many episodes that place
        groups of ops which heavy edges join, another merging for each update, and as many
        candidates of the baseline Clustering. What they find may be the best placement so far, the
        gradient is without them.
    grouped: share of the updates of a problem whose own episodes place such groups.
    imitate_best: weight of imitating the best placement so far, rising from 0: what sampling has
        found the policy then decides without drawing.

    Source: see `Reinforcement`.
    """

    batch_episodes: Batch
    try_every: Count
    exploration: Share | None
    advantage: Annotated[str, one_of(ADVANTAGES)]
    learning_rate: Rates
    entropy: Amount
    tuned_updates: Count | None
    beside: BatchOrNone
    imitate_best: Amount
    grouped: Share = 0.0
    batch_problems: Batch = 1

    def __post_init__(self) -> None:
        if self.advantage == "batch" and self.batch_episodes < 2:
            raise InputError(
                "algorithm.reinforcement.batch_episodes: advantage=batch needs two, got 1"
            )

    def num_tuned(self, num_updates: int) -> int:
        """Updates that rates and entropy are for, the first; only these execute others beside."""
        return min(num_updates, self.tuned_updates or num_updates)

    def tuned_for(self, num_updates: int) -> Self:
        """The options with rates and entropy of a training of so many updates."""
        longer = max(1, num_updates) / max(1, self.num_tuned(num_updates))
        first, last = self.learning_rate
        return replace(
            self,
            learning_rate=(first / longer**0.5, last / longer**0.5),
            entropy=self.entropy * min(longer, _MOST_ENTROPY),
        )

    def evaluations(self, num_updates: int, confirmations: int) -> int:
        """Executions of a training on one problem, the trial at its end included; none of none.

        confirmations: executions that tell what a placement counts, one each where that is 0.
        """
        if num_updates == 0:
            return 0
        trials = -(-num_updates // self.try_every) + 1
        return (
            num_updates * (self.batch_episodes + confirmations)
            + 2 * self.beside * self.num_tuned(num_updates)
            + trials * max(1, confirmations)
        )

    def updates_within(self, evaluations: int, confirmations: int) -> int:
        """How many updates on one problem so many executions are enough for; 0: for none.

        confirmations: see `evaluations`.
        """
        num_updates = evaluations // self.batch_episodes
        while num_updates > 0 and self.evaluations(num_updates, confirmations) > evaluations:
            num_updates -= 1
        return num_updates
