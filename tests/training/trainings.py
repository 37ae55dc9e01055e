"""Small policies and problems to train them on, and trainings as runs begin them."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from new_weights import unlike_new
from problems import cluster_of, graph_of
from torch.utils.data import DataLoader

from doppler.env import ProblemView, make_view
from doppler.policies import DualPolicy
from doppler.problem import Placement, Problem, build
from doppler.search import Evaluator
from doppler.simulator import WorkConserving
from doppler.system import Session
from doppler.training import Reinforcement, ReinforcementOptions, TrainingProblem
from doppler.training.updates import EpisodeTraining, Updates

OPTIMUM_S = 6.0  # of two_chains
LEARNING = {
    "batch_episodes": 16,
    "try_every": 8,
    "exploration": None,
    "advantage": "batch",
    "learning_rate": [1e-2, 1e-3],
    "network_rate": 0.2,
    "entropy": 1e-2,
    "tuned_updates": None,
    "extra_candidates": 0,
}


def make_policy(seed: int) -> DualPolicy:
    """New weights without a list scheduler in them, which would leave too little to learn."""
    torch.manual_seed(seed)
    policy = DualPolicy(sel_hidden=64, plc_hidden=64, hidden=8, rounds=1, scheduler=False)
    return unlike_new(policy, 0.01)


def two_chains() -> Problem:
    """Two chains of four ops with heavy edges, joined at the end by light ones; two devices.

    A chain on one device costs nothing to move and both chains run side by side: 4 s, then 1 s to
    move one result, then 1 s for the op that joins them.
    """
    chains = [[0, 1, 2, 3], [4, 5, 6, 7]]
    edges = [(u, v, 4.0) for chain in chains for u, v in pairwise(chain)]
    edges += [(3, 8, 1.0), (7, 8, 1.0)]
    return build(graph_of([1.0] * 9, edges), cluster_of([1.0, 1.0]))


def greedy_s(policy: DualPolicy, problem: Problem) -> float:
    rng = np.random.default_rng(0)
    placements = policy.rollout(make_view(problem), 1, 0.0, rng).placements()
    with WorkConserving().open(problem) as session:
        return float(session.measure(*placements).cost_s()[0])


def reinforcement(
    session: Session,
    *,
    evaluations: int = 100,
    confirmations: int = 0,
    seed: int = 0,
    policy: DualPolicy | None = None,
    on_best: Callable[[Placement, float], None] | None = None,
    on_best_weights: Callable[[], None] = lambda: None,
    **options,
) -> Reinforcement:
    """A training on one problem within so many evaluations, as a run has it."""
    view = make_view(session.problem)
    best = Evaluator(session=session, confirmations=confirmations, seed=seed, on_best=on_best)
    learning = ReinforcementOptions(**{**LEARNING, **options})
    task = TrainingProblem(view, best)
    return Reinforcement(
        policy=make_policy(0) if policy is None else policy,
        problems=[task],
        trials=[task],
        options=learning,
        num_updates=learning.updates_within(evaluations, best.confirmations),
        seed=seed,
        title="test",
        on_best=on_best_weights,
    )


def task_of(view: ProblemView, session: Session | None = None) -> TrainingProblem:
    """A problem to train on, executed by a simulator where nothing else is given."""
    session = WorkConserving().open(view.problem) if session is None else session
    return TrainingProblem(view, Evaluator(session=session, confirmations=0, seed=0))


def fit(
    module: EpisodeTraining,
    directory: Path,
    callbacks: Sequence[pl.Callback] = (),
    *,
    steps: int | None = None,
    from_checkpoint: Path | None = None,
) -> pl.Trainer:
    """Train as a run does; up to ``steps`` updates, or all."""
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        max_steps=steps or module.num_updates,
        gradient_clip_val=1.0,
        deterministic=True,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        default_root_dir=directory,
        callbacks=list(callbacks),
    )
    batches = DataLoader(Updates(), batch_size=None)
    trainer.fit(module, batches, ckpt_path=from_checkpoint, weights_only=True)
    return trainer


def weights_of(module: EpisodeTraining) -> torch.Tensor:
    """All parameters, in one row."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


class CountingSession:
    """Passes everything on, and counts the placements that are executed."""

    def __init__(self, session: Session) -> None:
        self.session, self.problem, self.executed = session, session.problem, 0
        self.is_random, self.honours_order = session.is_random, session.honours_order

    def measure(self, device_BV, priority_BV=None, repeats=1, rng=None):
        self.executed += len(device_BV) * repeats
        return self.session.measure(device_BV, priority_BV, repeats, rng)


class NotedRollouts:
    """Passes a policy's rollouts on, and notes each: episodes, exploration, the view."""

    def __init__(self, policy: DualPolicy) -> None:
        self.policy, self.noted = policy, []
        policy.rollout = self  # type: ignore[method-assign]

    def __call__(self, view, num_episodes, explore, rng):
        self.noted.append((num_episodes, explore, view))
        return type(self.policy).rollout(self.policy, view, num_episodes, explore, rng)

    @property
    def numbers(self) -> list[int]:
        """Episodes of each rollout."""
        return [num for num, _, _ in self.noted]

    def views_of(self, num_episodes: int) -> list[ProblemView]:
        """What rollouts of so many episodes were asked to place."""
        return [view for num, _, view in self.noted if num == num_episodes]


def groups_of(view: ProblemView) -> tuple[int, ...]:
    """The group of each op."""
    return tuple(view.arrays.group.tolist())
