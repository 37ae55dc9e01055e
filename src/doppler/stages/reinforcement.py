"""Stages II and III: policy gradient on the seconds of a system.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.episode import View
from doppler.errors import InputError
from doppler.policies import Policy
from doppler.problem import Placement
from doppler.stages.optimisation import (
    NO_EFFORT,
    ClockedModule,
    Effort,
    check_at_least,
    linear_decay,
    log_metrics,
    seeded_generator,
)
from doppler.system import Session


class Reinforcement(ClockedModule):
    """REINFORCE: sampled episodes, makespan as the only reward, advantage within the batch.

    policy: an nn.Module that is a Policy. session: the system to learn on, simulated or real.
    evaluations: executions in all; each update takes batch_episodes, and every ``greedy_every``
    updates one more for the greedy placement.
    learning_rate, final_learning_rate: of Adam, falling linearly. entropy: weight of the entropy
    bonus, falling to 0. seed: of everything random here. on_best: told of every new best placement
    and its seconds. on_best_greedy: called while the weights are those of a new best greedy one.
    inherited: what it took to make the weights that training begins with. elapsed_s and
    evaluations_done go on counting from there.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III. Deviations, by measurement: episodes
    are sampled from the policy instead of epsilon-greedy, the advantage is (mean - cost) / standard
    deviation of the batch instead of a running mean, there is no discount.
    """

    def __init__(
        self,
        *,
        title: str,
        policy: Policy,
        view: View,
        session: Session,
        evaluations: int,
        batch_episodes: int,
        greedy_every: int,
        learning_rate: float,
        final_learning_rate: float,
        entropy: float,
        seed: int,
        on_best: Callable[[Placement, float], None],
        on_best_greedy: Callable[[], None],
        inherited: Effort = NO_EFFORT,
    ) -> None:
        super().__init__()
        where = "algorithm.reinforcement"
        for key, value in (("batch_episodes", batch_episodes), ("greedy_every", greedy_every)):
            check_at_least(f"{where}.{key}", value, 1)
        check_at_least(f"{where}.learning_rate", learning_rate, 1e-12)
        check_at_least("budget.evaluations", evaluations, 1)
        self.title = title
        self.policy = policy
        self.view = view
        self.session = session
        self.batch_episodes = batch_episodes
        self.greedy_every = greedy_every
        self.num_updates = _num_updates(evaluations, batch_episodes, greedy_every)
        if self.num_updates < 1:
            raise InputError(
                f"budget.evaluations: {evaluations} is less than one batch of {batch_episodes}"
            )
        self.num_episodes = self.num_updates * batch_episodes
        self.learning_rate = learning_rate
        self.final_learning_rate = final_learning_rate
        self.entropy = entropy
        self.inherited = inherited
        self.elapsed_s = inherited.seconds
        self.evaluations_done = inherited.evaluations
        self.on_best = on_best
        self.on_best_greedy = on_best_greedy
        self.rng = seeded_generator(seed, "reinforcement")
        self.best_s = float("inf")
        self.best_placement: Placement | None = None
        self.greedy_s = float("inf")
        self.greedy_placement: Placement | None = None

    @property
    def episodes_done(self) -> int:
        """Episodes trained on so far."""
        return self.global_step * self.batch_episodes

    @property
    def evaluations_used(self) -> int:
        """Executions that the whole training takes, the greedy one at its end included."""
        return self.num_episodes + _num_greedy(self.num_updates, self.greedy_every)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Now and then, before an update: what would the policy do if it had to decide?"""
        if self.global_step % self.greedy_every == 0:
            self.try_greedy()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh episodes."""
        step, num_ops = self.global_step, self.view.problem.num_ops
        decisions = self.policy.rollout(self.view, self.batch_episodes, None, self.rng)
        cost_B = self._execute(*decisions.placements())
        log_prob_B, entropy_B = self.policy.log_prob(self.view, decisions)
        advantage_B = torch.from_numpy(batch_advantage(cost_B)).to(log_prob_B.dtype)
        entropy = entropy_B.mean() / num_ops
        remaining = 1.0 - step / self.num_updates
        feasible_B = cost_B[np.isfinite(cost_B)]
        log_metrics(
            self,
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "mean_s": float(feasible_B.mean()) if len(feasible_B) else float("inf"),
                "min_s": float(cost_B.min()),
                "best_s": self.best_s,
                "greedy_s": self.greedy_s,
                "entropy": entropy.item(),
            },
        )
        return -(advantage_B * log_prob_B).mean() / num_ops - self.entropy * remaining * entropy

    def _execute(
        self, device_BV: NDArray[np.int64], priority_BV: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        cost_B = self.session.measure(device_BV, priority_BV, rng=self.rng).cost_s()
        self.evaluations_done += len(device_BV)
        best = int(cost_B.argmin())
        if cost_B[best] < self.best_s:
            self.best_s = float(cost_B[best])
            self.best_placement = Placement.make(
                self.view.problem, device_BV[best], priority_BV[best]
            )
            self.on_best(self.best_placement, self.best_s)
        return cost_B

    def try_greedy(self) -> None:
        """Execute the greedy placement of the present weights; the best so far is kept."""
        decisions = self.policy.rollout(self.view, 1, 0.0, self.rng)
        device_BV, priority_BV = decisions.placements()
        cost = float(self._execute(device_BV, priority_BV)[0])
        # The first greedy placement counts even if it is infeasible: best.ckpt must exist.
        if self.greedy_placement is None or cost < self.greedy_s:
            self.greedy_s = cost
            self.greedy_placement = Placement.make(self.view.problem, device_BV[0], priority_BV[0])
            self.on_best_greedy()

    def configure_optimizers(self) -> Any:
        """Adam with a falling rate."""
        return linear_decay(self, self.learning_rate, self.final_learning_rate, self.num_updates)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state and the best so far."""
        checkpoint["doppler"] = {
            "rng": self.rng.bit_generator.state,
            "best": _plain(self.best_placement, self.best_s),
            "greedy": _plain(self.greedy_placement, self.greedy_s),
            "elapsed_s": self.elapsed_s,
            "evaluations": self.evaluations_done,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from them."""
        kept = checkpoint["doppler"]
        self.rng.bit_generator.state = kept["rng"]
        self.best_placement, self.best_s = self._restored(kept["best"])
        self.greedy_placement, self.greedy_s = self._restored(kept["greedy"])
        self.elapsed_s = kept["elapsed_s"]
        self.evaluations_done = kept["evaluations"]

    def _restored(self, plain: dict[str, Any]) -> tuple[Placement | None, float]:
        if plain["device"] is None:
            return None, plain["seconds"]
        placement = Placement.make(self.view.problem, plain["device"], plain["priority"])
        return placement, plain["seconds"]


def batch_advantage(cost_B: NDArray[np.float64]) -> NDArray[np.float64]:
    """(mean - cost) / standard deviation [B]; 0 where all costs are equal.

    An infeasible episode (inf) counts as the worst feasible one and once their spread more; if
    none is feasible there is nothing to learn from.
    """
    finite_B = np.isfinite(cost_B)
    if not finite_B.any():
        return np.zeros_like(cost_B)
    worst, spread = cost_B[finite_B].max(), np.ptp(cost_B[finite_B])
    cost_B = np.where(finite_B, cost_B, worst + max(spread, 0.1 * worst))
    deviation = cost_B.std()
    if deviation <= 1e-12 * abs(cost_B.mean()):
        return np.zeros_like(cost_B)
    return (cost_B.mean() - cost_B) / deviation


def _num_greedy(num_updates: int, greedy_every: int) -> int:
    """Greedy executions: before every ``greedy_every``-th update, and after the last."""
    return -(-num_updates // greedy_every) + 1


def _num_updates(evaluations: int, batch_episodes: int, greedy_every: int) -> int:
    """The most updates that the budget pays for."""
    num = evaluations // batch_episodes
    while num > 0 and num * batch_episodes + _num_greedy(num, greedy_every) > evaluations:
        num -= 1
    return num


def _plain(placement: Placement | None, seconds: float) -> dict[str, Any]:
    if placement is None:
        return {"device": None, "priority": None, "seconds": seconds}
    return {
        "device": placement.device.tolist(),
        "priority": placement.priority.tolist(),
        "seconds": seconds,
    }
