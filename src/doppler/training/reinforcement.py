"""Stages II and III: policy gradient on the seconds of a system, on one problem or on many.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.baselines import TaughtPlacement, draw_clusterings, lower_bound
from doppler.env import ProblemView, merged_at_random
from doppler.policies import Decisions, Policy
from doppler.policies.weights import VERSION
from doppler.problem import Placement
from doppler.search import (
    EPISODE,
    GREEDY,
    MERGED_EPISODE,
    NO_EFFORT,
    NO_PLACEMENT,
    Effort,
    Evaluator,
    ScoredPlacement,
    seeded_generator,
)
from doppler.support.errors import InputError
from doppler.support.options import Natural, check
from doppler.training.advantage import ADVANTAGES, NO_HISTORY, CostHistory
from doppler.training.learning import Learning
from doppler.training.updates import EpisodeTraining, finite


@dataclass(eq=False)
class Task:
    """A problem to train on, or to try the weights on.

    view: the problem as the policy sees it.
    best: executes its placements and keeps the best.
    past: costs of the episodes so far, for advantages that look back.
    greedy: the best greedy placement so far.
    """

    view: ProblemView
    best: Evaluator
    past: CostHistory = NO_HISTORY
    greedy: ScoredPlacement = NO_PLACEMENT

    @cached_property
    def bound_s(self) -> float:
        """What no placement can beat; 1 where that is 0."""
        return lower_bound(self.view.problem).seconds or 1.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "best": self.best.state(),
            "past": list(self.past),
            "greedy": self.greedy.plain(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best.restore(state["best"])
        self.past = CostHistory(*state["past"])
        self.greedy = ScoredPlacement.restored(state["greedy"], self.view.problem)


class Score(NamedTuple):
    """How good greedy placements are; less is better.

    infeasible: how many do not fit in memory. ratio: of the others, makespan over lower bound, the
    geometric mean.
    """

    infeasible: int
    ratio: float


class Spread(Protocol):
    """Who does the work of a training elsewhere; the same for any number of workers."""

    def loss(self, module: "Reinforcement", chosen: Sequence[int]) -> Tensor:
        """Has the gradient of an update on problems, by their numbers, which are told of it."""
        ...

    def tried(self, module: "Reinforcement") -> list[float]:
        """Seconds of the greedy placements of all trials, which are told of them."""
        ...


class Reinforcement(EpisodeTraining):
    """REINFORCE with the makespan as the only reward.

    policy: an nn.Module that is a Policy.
    tasks: the problems to train on, one or many; advantages are those of one problem's episodes, so
        none counts more because its seconds are longer or its graph larger.
    trials: whose greedy placements tell which weights are the best; tasks, or held-out problems.
    learning: the options.
    num_updates: in all; 0: the weights stay as they are.
    seed: of everything random here.
    title: what the training is called where progress is told.
    on_best: called while the weights are those of the best trial so far.
    inherited: what it took to make the weights that training begins with; effort goes on there.
    spread: does the episodes and gradients of drawn problems, and the trials, elsewhere; None: they
        are done here, with the random numbers of one stream.

    trained: what training alone has found on its first task, set once it has ended.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III: exploration from 0.2, the running
    mean as advantage, one episode an update (conf/algorithm/paper.yaml). What measures better is
    the default: episodes sampled from the policy, advantages within a batch, self-imitation (Oh,
    Guo, Singh, Lee, ICML 2018, here of the best placement alone), episodes of groups and
    clusterings beside (on 8 devices, where single decisions seldom bring together what belongs
    together). Training on many problems at once is ours. Deviations in any case: no discount of the
    only reward; the gradient is that of the softmax's log-probability of the choices taken,
    exploring ones included (as in the released code).
    """

    options = "algorithm.reinforcement"

    def __init__(
        self,
        *,
        policy: Policy,
        tasks: Sequence[Task],
        trials: Sequence[Task],
        learning: Learning,
        num_updates: int,
        seed: int,
        title: str,
        on_best: Callable[[], None],
        inherited: Effort = NO_EFFORT,
        spread: "Spread | None" = None,
    ) -> None:
        super().__init__()
        check("updates", Natural, num_updates)
        if not tasks or not trials:
            raise InputError("problems and held_out: at least one problem each")
        self.title = title
        self.policy = policy
        self.tasks, self.trials = list(tasks), list(trials)
        self.num_updates = num_updates
        self.learning = learning.tuned_for(num_updates)
        first, last = self.learning.learning_rate
        self.learning_rate = first, last
        self.batch_problems = min(len(self.tasks), learning.batch_problems)
        self.batch_episodes = self.batch_problems * learning.batch_episodes
        self.inherited = inherited
        self.elapsed_s = inherited.seconds
        self.on_best = on_best
        self.spread = spread
        self.rng = seeded_generator(seed, "reinforcement")
        self.score: Score | None = None
        self.trained: tuple[ScoredPlacement, Effort] | None = None

    @property
    def task(self) -> Task:
        """The first problem, which is the only one where a run is about one."""
        return self.tasks[0]

    @property
    def best_s(self) -> float:
        """Seconds of the best placement so far; inf where problems do not compare."""
        return self.task.best.seconds if len(self.tasks) == 1 else float("inf")

    @property
    def effort(self) -> Effort:
        """What it took to get here, and to where it began."""
        own = sum(best.evaluations for best in {one.best for one in (*self.tasks, *self.trials)})
        return Effort(self.inherited.evaluations + own, self.elapsed_s)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Now and then, before an update: what would the policy do if it had to decide?"""
        if self.global_step % self.learning.try_every == 0:
            self.try_greedy()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """One update on fresh episodes of the problem, or of some of the problems."""
        if self.batch_problems == len(self.tasks):
            chosen = np.arange(len(self.tasks))
        else:
            chosen = self.rng.integers(len(self.tasks), size=self.batch_problems)
        if self.spread is not None:
            return self.spread.loss(self, chosen.tolist())
        return finite(torch.stack([self.loss_of(self.tasks[i]) for i in chosen]).mean())

    def loss_of(self, task: Task) -> Tensor:
        """Of fresh episodes of a problem, which it is told of."""
        learning, remaining, view = self.learning, self.remaining, task.view
        explore = None if learning.exploration is None else learning.exploration * remaining
        if learning.grouped and self.rng.random() < learning.grouped:
            view = merged_at_random(view, self.rng)
        episodes = self.policy.rollout(view, learning.batch_episodes, explore, self.rng)
        source = MERGED_EPISODE if view.is_merged else EPISODE
        cost_B, shortfall_B = self._executed(task, episodes, explore, source)
        best = self._episodes_of_best(task)
        log_prob_B, entropy_B = self.policy.log_prob(view, episodes, *best)
        advantage = ADVANTAGES[learning.advantage](cost_B, shortfall_B, task.past)
        task.past = task.past.with_batch(cost_B)
        own, num_ops = slice(learning.batch_episodes), view.problem.num_ops
        advantage_B = torch.from_numpy(advantage).to(log_prob_B.dtype)
        entropy = entropy_B[own].mean() / num_ops
        gain = (advantage_B * log_prob_B[own]).mean() / num_ops
        loss = -gain - learning.entropy * remaining * entropy
        if best:
            log_prob = log_prob_B[learning.batch_episodes :].mean()
            loss = loss - learning.imitate_best * (1.0 - remaining) * log_prob / num_ops
        if len(self.tasks) == 1:
            self._log(task, cost_B, entropy.item())
        return loss

    def _executed(
        self, task: Task, episodes: Decisions, explore: float | None, source: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cost and lack of memory [B] of episodes; others may be executed beside them."""
        placements, sources = [episodes.placements()], [source] * len(episodes.op)
        if self.global_step < self.learning.num_tuned(self.num_updates):
            placements += self._beside(task, explore)
            sources += [MERGED_EPISODE] * self.learning.beside
            sources += ["clustering"] * self.learning.beside
        device_BV, priority_BV = map(np.concatenate, zip(*placements, strict=True))
        measurement = task.best.measure(device_BV, priority_BV, self.rng, sources)
        own = slice(self.learning.batch_episodes)
        shortfall_B = measurement.memory_shortfall(task.view.problem.arrays.memory_bytes)
        return measurement.cost_s()[own], shortfall_B[own]

    def _beside(self, task: Task, explore: float | None) -> list[tuple[NDArray, NDArray]]:
        """Placements of groups of ops, by the policy and by a list scheduler."""
        num = self.learning.beside
        if not num:
            return []
        seen = merged_at_random(task.view, self.rng)
        grouped = self.policy.rollout(seen, num, explore, self.rng)
        drawn = draw_clusterings(task.view.problem, num, self.rng)
        return [grouped.placements(), drawn.placements()]

    def _episodes_of_best(self, task: Task) -> list[Decisions]:
        """The best placement so far as the policy would decide on it, if it is to be imitated."""
        placement = task.best.placement
        if self.learning.imitate_best == 0.0 or placement is None:
            return []
        problem = task.view.problem
        taught = TaughtPlacement.of(problem, placement).decide(problem, 1, self.rng)
        return [self.policy.follow(task.view, *taught)]

    def _log(self, task: Task, cost_B: NDArray[np.float64], entropy: float) -> None:
        feasible_B = cost_B[np.isfinite(cost_B)]
        self.log_update(
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "mean_s": float(feasible_B.mean()) if len(feasible_B) else float("inf"),
                "min_s": float(cost_B.min()),
                "best_s": task.best.seconds,
                "greedy_s": task.greedy.seconds,
                "entropy": entropy,
            }
        )

    def try_greedy(self) -> None:
        """Execute the greedy placements of the present weights; the best weights are told of."""
        if self.spread is not None:
            seconds = self.spread.tried(self)
        else:
            seconds = [self.try_on(task) for task in self.trials]
        ratios = [
            one / task.bound_s
            for one, task in zip(seconds, self.trials, strict=True)
            if np.isfinite(one)
        ]
        with np.errstate(divide="ignore"):  # a makespan of 0
            score = Score(len(seconds) - len(ratios), float(np.exp(np.log(ratios or 1.0).mean())))
        if len(self.tasks) > 1:
            self.log_update({"episodes": self.episodes_done, "held_out_ratio": score.ratio})
        # The first one counts even if nothing fits: best.ckpt must exist.
        if self.score is None or score < self.score:
            self.score = score
            self.on_best()

    def try_on(self, task: Task) -> float:
        """Execute the greedy placement of a problem; its seconds."""
        device_BV, priority_BV = self.policy.rollout(task.view, 1, 0.0, self.rng).placements()
        placement = Placement.make(task.view.problem, device_BV[0], priority_BV[0])
        seconds = task.best.confirm(placement, GREEDY)
        if task.greedy.placement is None or seconds < task.greedy.seconds:
            task.greedy = ScoredPlacement(placement, seconds, GREEDY)
        return seconds

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the random state and the best so far."""
        found, effort = self.trained or (NO_PLACEMENT, None)
        checkpoint["doppler"] = {
            "version": VERSION,
            "rng": self.rng.bit_generator.state,
            "best": self.task.best.state(),
            "tasks": [task.state() for task in self.tasks],
            "trials": [task.state() for task in self.trials],
            "score": self.score and list(self.score),
            "elapsed_s": self.elapsed_s,
            "evaluations": self.effort.evaluations,
            "trained": effort and [found.plain(), effort.evaluations, effort.seconds],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from them."""
        kept = checkpoint["doppler"]
        self.rng.bit_generator.state = kept["rng"]
        for key, tasks in (("tasks", self.tasks), ("trials", self.trials)):
            for task, state in zip(tasks, kept[key], strict=True):
                task.restore(state)
        self.score = kept["score"] and Score(*kept["score"])
        self.elapsed_s = kept["elapsed_s"]
        if kept["trained"] is not None:
            found, evaluations, seconds = kept["trained"]
            effort = Effort(evaluations, seconds)
            self.trained = ScoredPlacement.restored(found, self.task.view.problem), effort
