"""Allocators for programs of several modules, which learn only from the program's reward.

They see whether the whole answer is right, not which module was. Shape suffixes: M modules, F
features of a module.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.programs.streams.stream import StreamInput, StreamSession
from doppler.support.errors import InputError
from doppler.support.options import Amount, Positive, checked

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_EVERY = 10  # inputs between two solutions of the regression


@checked
@dataclass(frozen=True, kw_only=True)
class StructuredReinforce:
    """A policy for each module; all of them follow the gradient of the program's reward.

    The probability that module m runs on the dear backend is a logistic function of the module's
    features. The advantage reference is a regression on the features of all modules.

    Attributes:
        price: reward that a mean cost of 1 is worth.
        rate: step size.

    Source: structured REINFORCE of "Resource-efficient inference with foundation model programs",
    arXiv 2504.07247: a policy that factorises over the program's modules. Deviations: two backends,
    linear policies, AdaGrad steps, and a linear reference.
    """

    price: Amount = 0.1
    rate: Positive = 0.3
    name: ClassVar[str] = "structured_reinforce"

    def check(self, session: StreamSession) -> None:
        _check(self.name, session)

    def play(self, session: StreamSession, rng: np.random.Generator) -> None:
        modules, size = session.num_modules, session.num_module_features + 1
        weight_MF, sum_MF = np.zeros((modules, size)), np.zeros((modules, size))
        reference = _Reference(modules * size)
        for one in session:
            x_MF = module_features(session, one)
            dear_M = 1.0 / (1.0 + np.exp(-np.clip((weight_MF * x_MF).sum(axis=1), -30, 30)))
            choice_M = (rng.random(modules) < dear_M).astype(np.int64)
            reward = session.run(choice_M) - self.price * float(session.cost[choice_M].mean())
            advantage = reward - reference.foretell(x_MF.ravel())
            gradient_MF = advantage * (choice_M - dear_M)[:, None] * x_MF
            sum_MF += gradient_MF**2
            weight_MF += self.rate * gradient_MF / (np.sqrt(sum_MF) + 1e-8)
            reference.learn(x_MF.ravel(), reward)


@checked
@dataclass(frozen=True, kw_only=True)
class StructuredThompson:
    """Thompson sampling with a reward that is a sum over modules.

    A Bayesian linear regression predicts the reward from each module's features, and from what the
    dear backend adds to them. For each input all weights are drawn once, and a module runs on the
    dear backend if that adds more than it costs.

    Attributes:
        price: reward that a mean cost of 1 is worth.
        spread: of the draws, in standard deviations.
        ridge: precision of the prior.

    Source: Thompson sampling for linear bandits, Agrawal and Goyal, 2013; structured by modules as
    in arXiv 2504.07247. Deviation: the reward is a sum over modules.
    """

    price: Amount = 0.1
    spread: Amount = 0.3
    ridge: Positive = 3.0
    name: ClassVar[str] = "structured_thompson"

    def check(self, session: StreamSession) -> None:
        _check(self.name, session)

    def play(self, session: StreamSession, rng: np.random.Generator) -> None:
        modules, size = session.num_modules, session.num_module_features + 1
        num = modules * size
        square = np.diag(np.repeat([self.ridge, 2.0 * self.ridge], num))
        product, mean = np.zeros(2 * num), np.zeros(2 * num)
        root = np.linalg.cholesky(np.linalg.inv(square))
        extra = float(session.cost.max() - session.cost.min()) / modules
        for one in session:
            x_MF = module_features(session, one)
            drawn = mean + self.spread * (root @ rng.normal(size=2 * num))
            gain_M = (drawn[num:].reshape(modules, size) * x_MF).sum(axis=1)
            choice_M = (gain_M > self.price * extra).astype(np.int64)
            right = session.run(choice_M)
            x = np.concatenate([x_MF.ravel(), ((choice_M - 0.5)[:, None] * x_MF).ravel()])
            square += np.outer(x, x)
            product += right * x
            if one.number % _EVERY == 0:
                inverse = np.linalg.inv(square)
                mean, root = inverse @ product, np.linalg.cholesky(inverse)


class _Reference:
    """Predicts the reward of an input, whatever is chosen, by a regression with gradient steps."""

    def __init__(self, size: int) -> None:
        self._weight, self._sum = np.zeros(size), np.zeros(size)

    def foretell(self, x: FloatArray) -> float:
        return float(self._weight @ x)

    def learn(self, x: FloatArray, reward: float) -> None:
        gradient = (self.foretell(x) - reward) * x
        self._sum += gradient**2
        self._weight -= 0.05 * gradient / (np.sqrt(self._sum) + 1e-8)


def module_features(session: StreamSession, one: StreamInput) -> FloatArray:
    """Return the features [M, F] of each module, with a constant first.

    Args:
        session: one pass over a stream.
        one: the input.
    """
    if session.by_module:
        x_MF = one.features.reshape(session.num_modules, -1)
    else:
        x_MF = np.broadcast_to(one.features, (session.num_modules, len(one.features)))
    return np.hstack([np.ones((session.num_modules, 1)), x_MF])


def _check(name: str, session: StreamSession) -> None:
    if len(session.backends) != 2 or session.cost[0] > session.cost[1]:
        raise InputError(f"method={name}: chooses between a cheap and a dear backend")
