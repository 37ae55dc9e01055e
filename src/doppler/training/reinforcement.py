"""Stages II and III: REINFORCE on makespans, on one problem or on many.

Shape suffixes: B episodes, V ops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.baselines import TaughtPlacement, draw_clusterings, lower_bound
from doppler.env import ProblemView, merged_at_random
from doppler.policies import Decisions, Policy, Returns
from doppler.policies.weights import VERSION
from doppler.problem import Placement
from doppler.search import (
    EPISODE,
    GREEDY,
    MERGED_EPISODE,
    NO_EFFORT,
    NO_PLACEMENT,
    RETURNED,
    Effort,
    Evaluator,
    ScoredPlacement,
    seeded_generator,
)
from doppler.search.estimating import estimated_costs, open_estimates_of
from doppler.simulator import SimulatorSession
from doppler.support.errors import InputError
from doppler.support.options import Natural, check
from doppler.trace import ExecutionRules
from doppler.training.advantage import ADVANTAGES, NO_HISTORY, CostHistory
from doppler.training.options import ReinforcementOptions
from doppler.training.updates import EpisodeTraining, finite

# Devices and priorities of several placements, [B, V] each.
Placements = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(eq=False)
class TrainingProblem:
    """A problem to train on, or to test weights on, and what is known about it so far.

    Attributes:
        view: the problem as the policy sees it.
        evaluator: executes its placements and keeps the best one.
        history: costs of the episodes so far, for advantages that use them.
        greedy: the best greedy placement so far.
        tried: the greedy placement of the last trial.
    """

    view: ProblemView
    evaluator: Evaluator
    history: CostHistory = NO_HISTORY
    greedy: ScoredPlacement = NO_PLACEMENT
    tried: ScoredPlacement = NO_PLACEMENT

    @property
    def best(self) -> ScoredPlacement:
        """The best placement so far; a greedy one if nothing else fits in memory."""
        return self.evaluator.found if self.evaluator.placement else self.greedy

    @cached_property
    def bound_s(self) -> float:
        """A lower bound on the makespan on the system that executes, seconds; 1 if it is 0."""
        rules: ExecutionRules = getattr(self.evaluator.session, "execution", ExecutionRules())
        bound = lower_bound(self.view.problem, streams=rules.streams, shares=rules.shared)
        return bound.seconds or 1.0

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {
            "best": self.evaluator.state(),
            "history": list(self.history),
            "greedy": self.greedy.plain(),
            "tried": self.tried.plain(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.evaluator.restore(state["best"])
        self.history = CostHistory(*state["history"])
        self.greedy = ScoredPlacement.restored(state["greedy"], self.view.problem)
        if "tried" in state:  # which older checkpoints lack
            self.tried = ScoredPlacement.restored(state["tried"], self.view.problem)


class Score(NamedTuple):
    """How good greedy placements are; smaller is better.

    Attributes:
        infeasible: number of placements that do not fit in memory.
        ratio: geometric mean of makespan over lower bound of the others.
    """

    infeasible: int
    ratio: float


class Spread(Protocol):
    """Runs episodes and gradients in other processes; results do not depend on their number."""

    def loss(self, module: "Reinforcement", chosen: Sequence[int]) -> Tensor:
        """A loss with the gradient of an update on the problems with these indices."""
        ...

    def tried(self, module: "Reinforcement") -> list[float]:
        """Seconds of the greedy placements of all trials."""
        ...


class Reinforcement(EpisodeTraining):
    """REINFORCE with the makespan as the only reward.

    Args:
        policy: an nn.Module that is a Policy.
        problems: to train on. Advantages compare episodes of one problem, so large or slow problems
            do not count more.
        trials: problems whose greedy placements decide which weights are the best: the training
            problems themselves, or held-out ones.
        options: of the training.
        num_updates: in all; with 0 the weights stay as they are.
        seed: of all random choices.
        title: of the training in progress lines.
        on_best: called while the weights are those of the best trial so far.
        inherited: effort that made the initial weights.
        spread: runs episodes and gradients in other processes; None: in this one.
        stream: ends the name of the random stream, for trainings that share a seed.

    Attributes:
        trained: what training alone found on its first problem, and its effort; None until the
            training has ended.
        settling_s: seconds of imitating the best placement at the end, part of ``elapsed_s``.
        is_searched: whether a search has followed.

    Source: DOPPLER (Yao et al., ICLR 2026), stages II and III; conf/algorithm/paper.yaml has the
    paper's exploration, advantage and batch of one episode. The default deviates where that
    measured better: episodes are sampled from the policy, advantages compare the episodes of a
    batch, and extra candidates are executed. Some episodes return to the best placement and decide
    some of its steps anew (Go-Explore; Ecoffet et al., Nature 2021); the policy learns nothing from
    these. With ``returning_drafts``, estimates choose which of them to execute, as in a search
    (`search.estimating.AnnealOnEstimates`). Two deviations hold in any case: the reward is not
    discounted, and the gradient is that of the softmax log-probability of the actions taken,
    including exploring ones (as in the released code).
    """

    options_key = "algorithm.reinforcement"

    def __init__(
        self,
        *,
        policy: Policy,
        problems: Sequence[TrainingProblem],
        trials: Sequence[TrainingProblem],
        options: ReinforcementOptions,
        num_updates: int,
        seed: int,
        title: str,
        on_best: Callable[[], None],
        inherited: Effort = NO_EFFORT,
        spread: Spread | None = None,
        stream: str = "",
    ) -> None:
        super().__init__()
        check("updates", Natural, num_updates)
        if not problems or not trials:
            raise InputError("problems and held_out: at least one problem each")
        self.title = title
        self.policy = policy
        self.problems, self.trials = list(problems), list(trials)
        self.num_updates = num_updates
        self.options = options.tuned_for(num_updates)
        first, last = self.options.learning_rate
        self.learning_rate = first, last
        self.network_rate = self.options.network_rate
        self.batch_problems = min(len(self.problems), options.batch_problems)
        self.batch_episodes = self.batch_problems * options.batch_episodes
        self.inherited = inherited
        self.elapsed_s = inherited.seconds
        self.on_best = on_best
        self.spread = spread
        self.namespace = "stage_2"
        self.rng = seeded_generator(seed, f"reinforcement{stream}")
        self.score: Score | None = None
        self.trained: tuple[ScoredPlacement, Effort] | None = None
        self.settling_s = 0.0
        self.is_searched = False

    @property
    def problem(self) -> TrainingProblem:
        """The first problem, which is the only one unless training on a set."""
        return self.problems[0]

    @property
    def best_s(self) -> float:
        """Seconds of the best placement so far; inf with several problems, which do not compare."""
        return self.problem.evaluator.seconds if len(self.problems) == 1 else float("inf")

    @property
    def effort(self) -> Effort:
        """Executions and seconds so far, including those of the initial weights."""
        used = {one.evaluator for one in (*self.problems, *self.trials)}
        own = sum(evaluator.evaluations for evaluator in used)
        return Effort(self.inherited.evaluations + own, self.elapsed_s)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Execute the greedy placement every ``try_every`` updates."""
        if self.global_step % self.options.try_every == 0:
            self.try_greedy()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """Return the loss of fresh episodes of the problem, or of some of the problems."""
        if self.batch_problems == len(self.problems):
            chosen = np.arange(len(self.problems))
        else:
            chosen = self.rng.integers(len(self.problems), size=self.batch_problems)
        if self.spread is not None:
            return self.spread.loss(self, chosen.tolist())
        return finite(torch.stack([self.loss(self.problems[i]) for i in chosen]).mean())

    def loss(self, problem: TrainingProblem) -> Tensor:
        """Play episodes of a problem, execute them, and return the loss of REINFORCE.

        Both terms are means over the episodes, divided by the number of ops:

        - policy gradient: - advantage * log-probability of the episode
        - entropy bonus: - ``options.entropy`` * entropy of the actions, falling to 0
        """
        options, view = self.options, self._view_to_play(problem)
        explore = None if options.exploration is None else options.exploration * self.remaining
        returning = self._return_to_best(problem, view)
        num = options.batch_episodes - sum(len(device_BV) for device_BV, _ in returning)
        played = self.policy.rollout(view, num, explore, self.rng)
        cost_B, shortfall_B = self._execute(problem, view, played, returning, explore)
        log_prob_B, entropy_B = self.policy.log_prob(view, played)
        advantage_B = ADVANTAGES[options.advantage](cost_B, shortfall_B, problem.history)
        problem.history = problem.history.with_batch(cost_B)

        num_ops = view.problem.num_ops
        weight_B = torch.from_numpy(advantage_B).to(log_prob_B.dtype)
        policy_gradient = (weight_B * log_prob_B).mean() / num_ops
        entropy = entropy_B.mean() / num_ops
        if len(self.problems) == 1:
            self._log(problem, cost_B, entropy.item())
        return -policy_gradient - options.entropy * self.remaining * entropy

    def _return_to_best(self, problem: TrainingProblem, view: ProblemView) -> list[Placements]:
        """Episodes that return to the best placement so far, if this batch has any."""
        num = self.options.num_returning(1.0 - self.remaining)
        placement = problem.evaluator.placement
        if num == 0 or placement is None or view.is_merged or not isinstance(self.policy, Returns):
            return []
        taught = TaughtPlacement.of(view.problem, placement)
        num_ops, num_drafts = view.problem.num_ops, self.options.returning_drafts
        length_B = np.exp(self.rng.uniform(0, np.log(num_ops), num * num_drafts)).astype(np.int64)
        first_B = self.rng.integers(1 - length_B, num_ops)
        window_B2 = np.stack([first_B, first_B + length_B], axis=1).clip(0, num_ops)
        played = partial(self.policy.return_to, view, taught.op, taught.device, rng=self.rng)
        if num_drafts == 1:
            return [played(window_B2).placements()]
        with open_estimates_of(problem.evaluator.session) as estimates:
            # One after the other, because records of all drafts would need much memory.
            return [
                _best_draft(played(windows), taught, estimates)
                for windows in np.split(window_B2, num)
            ]

    def _view_to_play(self, problem: TrainingProblem) -> ProblemView:
        """The problem's view, or for a share of the updates one with merged ops."""
        share = self.options.merged_share
        if share and self.rng.random() < share:
            return merged_at_random(problem.view, self.rng)
        return problem.view

    def _execute(
        self,
        problem: TrainingProblem,
        view: ProblemView,
        played: Decisions,
        returning: list[Placements],
        explore: float | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Execute all episodes; return seconds and memory shortfall [B] of the sampled ones."""
        num, extra = len(played.op), self.options.extra_candidates
        placements = [played.placements(), *returning]
        sources = [MERGED_EPISODE if view.is_merged else EPISODE] * num
        first = problem.evaluator.found.source.removesuffix(RETURNED)
        sources += [first + RETURNED] * (self.options.batch_episodes - num)
        if extra and self.global_step < self.options.num_tuned(self.num_updates):
            merged = merged_at_random(problem.view, self.rng)
            with torch.no_grad():  # nothing is learned from them
                others = self.policy.rollout(merged, extra, explore, self.rng)
            placements.append(others.placements())
            placements.append(draw_clusterings(problem.view.problem, extra, self.rng).placements())
            sources += [MERGED_EPISODE] * extra + ["clustering"] * extra
        device_BV, priority_BV = map(np.concatenate, zip(*placements, strict=True))
        measured = problem.evaluator.measure(device_BV, priority_BV, self.rng, sources)
        shortfall_B = measured.memory_shortfall(problem.view.problem.arrays.memory_bytes)
        return measured.cost_s()[:num], shortfall_B[:num]

    def _log(self, problem: TrainingProblem, cost_B: NDArray[np.float64], entropy: float) -> None:
        feasible_B = cost_B[np.isfinite(cost_B)]
        self.note_update(
            {
                "episodes": self.episodes_done + self.batch_episodes,
                "mean_s": float(feasible_B.mean()) if len(feasible_B) else float("inf"),
                "min_s": float(cost_B.min()),
                "best_s": problem.evaluator.seconds,
                "greedy_s": problem.greedy.seconds,
                "entropy": entropy,
                "lower_bound_s": problem.bound_s,
            }
        )

    def try_greedy(self) -> None:
        """Execute the greedy placements of the present weights; call ``on_best`` if better."""
        if self.spread is not None:
            seconds = self.spread.tried(self)
        else:
            seconds = [self.try_on(problem) for problem in self.trials]
        ratios = [
            one / problem.bound_s
            for one, problem in zip(seconds, self.trials, strict=True)
            if np.isfinite(one)
        ]
        with np.errstate(divide="ignore"):  # a makespan of 0
            ratio = float(np.exp(np.log(ratios).mean())) if ratios else float("inf")
        score = Score(len(seconds) - len(ratios), ratio)
        if len(self.problems) > 1:
            self.log_update(
                {
                    "episodes": self.episodes_done,
                    "held_out_ratio": score.ratio,
                    "held_out_infeasible": score.infeasible,
                }
            )
        # The first trial counts even if nothing fits, because best.ckpt must exist.
        if self.score is None or score < self.score:
            self.score = score
            self.on_best()

    def try_on(self, problem: TrainingProblem) -> float:
        """Execute the greedy placement of a problem and return its seconds."""
        device_BV, priority_BV = self.policy.rollout(problem.view, 1, 0.0, self.rng).placements()
        placement = Placement.make(problem.view.problem, device_BV[0], priority_BV[0])
        seconds = problem.evaluator.confirm(placement, GREEDY)
        problem.tried = ScoredPlacement(placement, seconds, GREEDY)
        if problem.greedy.placement is None or seconds < problem.greedy.seconds:
            problem.greedy = problem.tried
        return seconds

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the random state and what is known about the problems."""
        found, effort = self.trained or (NO_PLACEMENT, None)
        checkpoint["doppler"] = {
            "version": VERSION,
            "rng": self.rng.bit_generator.state,
            "best": self.problem.evaluator.state(),
            "problems": [problem.state() for problem in self.problems],
            "trials": [problem.state() for problem in self.trials],
            "score": self.score and list(self.score),
            "elapsed_s": self.elapsed_s,
            "settling_s": self.settling_s,
            "evaluations": self.effort.evaluations,
            "trained": effort and [found.plain(), effort.evaluations, effort.seconds],
            "is_searched": self.is_searched,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        kept = checkpoint["doppler"]
        self.rng.bit_generator.state = kept["rng"]
        for key, problems in (("problems", self.problems), ("trials", self.trials)):
            for problem, state in zip(problems, kept[key], strict=True):
                problem.restore(state)
        self.score = kept["score"] and Score(*kept["score"])
        self.elapsed_s = kept["elapsed_s"]
        self.settling_s = kept.get("settling_s", 0.0)  # which older checkpoints lack
        self.is_searched = kept["is_searched"]
        if kept["trained"] is not None:
            found, evaluations, seconds = kept["trained"]
            effort = Effort(evaluations, seconds)
            self.trained = ScoredPlacement.restored(found, self.problem.view.problem), effort


def _best_draft(
    drafts: Decisions, returned_to: TaughtPlacement, estimates: SimulatorSession
) -> Placements:
    """The draft with the best estimate; one that repeats the placement comes last."""
    device_BV, priority_BV = drafts.placements()
    estimated = [one.cost for one in estimated_costs(estimates, device_BV, priority_BV)]
    same_BV = (drafts.op == returned_to.op) & (drafts.device == returned_to.device)
    best = int(np.where(same_BV.all(axis=1), np.inf, estimated).argmin())
    return device_BV[best, None], priority_BV[best, None]
