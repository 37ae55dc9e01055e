"""Small classifiers that learn online, by gradients, from examples that an expert has labelled.

Shape suffixes: B examples, F features, H hidden, C classes.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_EPSILON = 1e-8


class OnlineModel(Protocol):
    """A classifier that learns online."""

    def shares(self, x_F: FloatArray) -> FloatArray:
        """Return the probabilities of the classes [C].

        Args:
            x_F: features of one input.
        """
        ...

    def learn(self, x_BF: FloatArray, label_B: IntArray) -> None:
        """Take one gradient step on the mean cross-entropy.

        Args:
            x_BF: features of the examples.
            label_B: their classes.
        """
        ...


class _AdaGrad:
    """Gradient steps with a size of their own for each weight (Duchi, Hazan, Singer, 2011)."""

    def __init__(self, weight: FloatArray, rate: float) -> None:
        self.weight, self._rate = weight, rate
        self._sum = np.zeros_like(weight)

    def step(self, gradient: FloatArray) -> None:
        self._sum += gradient**2
        self.weight -= self._rate * gradient / (np.sqrt(self._sum) + _EPSILON)


def softmax(score_BC: FloatArray) -> FloatArray:
    """Return probabilities, which sum to one along the last axis.

    Args:
        score_BC: logits.
    """
    raised_BC = np.exp(score_BC - score_BC.max(axis=-1, keepdims=True))
    return raised_BC / raised_BC.sum(axis=-1, keepdims=True)


def _error(share_BC: FloatArray, label_B: IntArray) -> FloatArray:
    error_BC = share_BC.copy()
    error_BC[np.arange(len(label_B)), label_B] -= 1.0
    return error_BC / len(label_B)


class OnlineLogistic:
    """Multinomial logistic regression.

    Args:
        num_features: F.
        num_classes: C.
        rate: step size.
    """

    def __init__(self, num_features: int, num_classes: int, rate: float = 0.1) -> None:
        self._weight = _AdaGrad(np.zeros((num_features + 1, num_classes)), rate)

    def shares(self, x_F: FloatArray) -> FloatArray:
        return softmax(np.append(x_F, 1.0) @ self._weight.weight)

    def learn(self, x_BF: FloatArray, label_B: IntArray) -> None:
        x_BF = np.hstack([x_BF, np.ones((len(x_BF), 1))])
        self._weight.step(x_BF.T @ _error(softmax(x_BF @ self._weight.weight), label_B))


class OnlineNet:
    """A network with one hidden layer of rectified units.

    Args:
        num_features: F.
        num_classes: C.
        rng: of the first weights.
        hidden: H.
        rate: step size.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        rng: np.random.Generator,
        hidden: int = 64,
        rate: float = 0.03,
    ) -> None:
        into = rng.normal(size=(num_features + 1, hidden)) / np.sqrt(num_features)
        out = rng.normal(size=(hidden + 1, num_classes)) / np.sqrt(hidden)
        self._into, self._out = _AdaGrad(into, rate), _AdaGrad(out, rate)

    def shares(self, x_F: FloatArray) -> FloatArray:
        hidden_H = np.maximum(np.append(x_F, 1.0) @ self._into.weight, 0.0)
        return softmax(np.append(hidden_H, 1.0) @ self._out.weight)

    def learn(self, x_BF: FloatArray, label_B: IntArray) -> None:
        one_B1 = np.ones((len(x_BF), 1))
        x_BF = np.hstack([x_BF, one_B1])
        hidden_BH = np.maximum(x_BF @ self._into.weight, 0.0)
        above_BH = np.hstack([hidden_BH, one_B1])
        error_BC = _error(softmax(above_BH @ self._out.weight), label_B)
        back_BH = (error_BC @ self._out.weight[:-1].T) * (hidden_BH > 0)
        self._out.step(above_BH.T @ error_BC)
        self._into.step(x_BF.T @ back_BH)
