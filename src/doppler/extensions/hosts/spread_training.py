"""Training on many problems with workers, which play episodes and compute gradients.

A job is one drawn problem: the weights, the state of the problem and its own seed. So it does not
matter which worker does it, or when. This process adds the gradients in the order of the draws, and
updates the weights.

Shape suffix: P parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.env import make_view
from doppler.policies import Policy
from doppler.problem import Problem
from doppler.search import Evaluator
from doppler.support.compute import Compute, Pool
from doppler.system import System
from doppler.training.options import ReinforcementOptions
from doppler.training.reinforcement import Reinforcement, TrainingProblem
from doppler.training.updates import finite

_SEEDS = 2**62
FloatArray = NDArray[np.float32]


class Weights(NamedTuple):
    """What all jobs of an update share.

    Attributes:
        step: number of the update.
        values: [P] parameters of the policy.
    """

    step: int
    values: FloatArray


class Drawn(NamedTuple):
    """The result of a job that plays episodes of a problem.

    Attributes:
        gradients: [P] for each time that the problem was drawn.
        state: of the problem afterwards.
        metrics: to log.
    """

    gradients: list[FloatArray]
    state: dict[str, Any]
    metrics: list[dict[str, float]]


class Tried(NamedTuple):
    """The result of a job that tries the greedy placement of a problem.

    Attributes:
        seconds: of the placement.
        state: of the problem afterwards.
    """

    seconds: float
    state: dict[str, Any]


class Player:
    """The object of a worker: the policy and all problems, whose state comes with each job.

    Args:
        policy: to train.
        system: on which placements are executed.
        problems: to train on.
        trials: problems whose greedy placements are tried.
        options: of learning.
        num_updates: of the whole training.
        seed: of the training.
    """

    def __init__(
        self,
        policy: Policy,
        system: System,
        problems: Sequence[Problem],
        trials: Sequence[Problem],
        options: ReinforcementOptions,
        num_updates: int,
        seed: int,
    ) -> None:
        self._sessions = ExitStack()

        def tasks(several: Sequence[Problem]) -> list[TrainingProblem]:
            return [
                TrainingProblem(
                    make_view(problem),
                    Evaluator(
                        session=self._sessions.enter_context(system.open(problem)),
                        confirmations=0,
                        seed=seed,
                    ),
                )
                for problem in several
            ]

        self._module = _Part(
            policy=policy,
            problems=tasks(problems),
            trials=tasks(trials),
            options=options,
            num_updates=num_updates,
            seed=seed,
            title="",
            on_best=lambda: None,
        )

    def play(
        self, weights: Weights, number: int, state: dict[str, Any], seeds: Sequence[int]
    ) -> Drawn:
        """Play episodes of a problem, once for each seed, and compute a gradient for each.

        Args:
            weights: of the policy.
            number: of the problem.
            state: of the problem.
            seeds: one for each time that the problem was drawn.
        """
        module, task = self._module.with_weights(weights), self._module.problems[number]
        task.restore(state)
        gradients = []
        for seed in seeds:
            module.rng = np.random.default_rng(seed)
            module.zero_grad()
            loss = finite(module.loss(task) / module.batch_problems)
            loss.backward()
            gradients.append(_gradient(module))
        return Drawn(gradients, task.state(), module.taken())

    def attempt(self, weights: Weights, number: int, state: dict[str, Any], seed: int) -> Tried:
        """Execute the greedy placement of a trial.

        Args:
            weights: of the policy.
            number: of the trial.
            state: of the trial.
            seed: of this job.
        """
        module, task = self._module.with_weights(weights), self._module.trials[number]
        task.restore(state)
        module.rng = np.random.default_rng(seed)
        return Tried(module.try_on(task), task.state())


class _Part(Reinforcement):
    """A training inside a worker: it is given weights and step, and keeps its metrics."""

    step = 0

    @property
    def global_step(self) -> int:
        """Number of the update; there is no trainer here that counts it."""
        return self.step

    def with_weights(self, weights: Weights) -> "_Part":
        """Take over weights and step; return this object."""
        self.step, begin, self._metrics = weights.step, 0, list[dict[str, float]]()
        values = torch.from_numpy(np.array(weights.values))
        with torch.no_grad():
            for parameter in self.parameters():
                end = begin + parameter.numel()
                parameter.copy_(values[begin:end].view_as(parameter))
                begin = end
        return self

    def log_update(self, metrics: dict[str, float]) -> None:
        self._metrics.append(metrics)

    def taken(self) -> list[dict[str, float]]:
        """Return the metrics since the weights were set."""
        return self._metrics


class SpreadTraining:
    """A training (`reinforcement.Spread`) that gives its jobs to the workers of a pool.

    Args:
        pool: of `Player` objects.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def loss(self, module: Reinforcement, chosen: Sequence[int]) -> Tensor:
        """Return a tensor, 0, whose gradient is that of the drawn problems.

        Args:
            module: the training.
            chosen: numbers of the problems that were drawn.
        """
        seeds: dict[int, list[int]] = {}
        for number in chosen:
            seeds.setdefault(number, []).append(int(module.rng.integers(_SEEDS)))
        jobs = [
            (number, module.problems[number].state(), own)
            for number, own in _largest_first(module.problems, seeds)
        ]
        done = dict(zip([job[0] for job in jobs], self._ask(module, "play", jobs), strict=True))
        parameters = list(module.parameters())
        total_P = torch.zeros(sum(one.numel() for one in parameters))
        for number in chosen:  # in the order of the draws
            total_P += torch.from_numpy(done[number].gradients.pop(0).copy())
        for number, drawn in done.items():
            module.problems[number].restore(drawn.state)
            for metrics in drawn.metrics:
                module.log_update(metrics)
        return _WithGradient.apply(total_P, *parameters)

    def tried(self, module: Reinforcement) -> list[float]:
        """Return the seconds of the greedy placements of all trials.

        Args:
            module: the training.
        """
        seeds = {i: int(module.rng.integers(_SEEDS)) for i in range(len(module.trials))}
        jobs = [
            (number, module.trials[number].state(), seed)
            for number, seed in _largest_first(module.trials, seeds)
        ]
        seconds = [0.0] * len(jobs)
        for job, tried in zip(jobs, self._ask(module, "attempt", jobs), strict=True):
            seconds[job[0]] = tried.seconds
            module.trials[job[0]].restore(tried.state)
        return seconds

    def _ask(self, module: Reinforcement, method: str, jobs: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            values = torch.cat([one.reshape(-1) for one in module.parameters()]).numpy()
        return self._pool.map(method, jobs, Weights(module.global_step, values))


@contextmanager
def spread_training(compute: Compute, *arguments: Any) -> Iterator[SpreadTraining]:
    """Make a training whose episodes and gradients the workers of a pool compute.

    Args:
        compute: starts the workers.
        arguments: of `Player`.
    """
    with compute.pool(Player, *arguments) as pool:
        yield SpreadTraining(pool)


def _largest_first(tasks: Sequence[TrainingProblem], of: dict[int, Any]) -> list[tuple[int, Any]]:
    """Largest first, for load balance; the order does not affect results."""
    return sorted(of.items(), key=lambda one: -tasks[one[0]].view.problem.num_ops)


def _gradient(module: Reinforcement) -> FloatArray:
    parts = [
        torch.zeros(one.numel()) if one.grad is None else one.grad.reshape(-1)
        for one in module.parameters()
    ]
    return torch.cat(parts).numpy()


class _WithGradient(torch.autograd.Function):
    """A tensor, 0, with given gradients: [P] of all parameters in a row."""

    @staticmethod
    def forward(ctx: Any, gradient_P: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(gradient_P, *parameters)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        gradient_P, *parameters = ctx.saved_tensors
        parts = torch.split(gradient_P, [one.numel() for one in parameters])
        shaped = [part.view_as(one) for part, one in zip(parts, parameters, strict=True)]
        return (None, *shaped)
