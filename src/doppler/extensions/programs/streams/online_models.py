"""Small classifiers that learn online by gradients, from examples that an expert has labelled.

Shape suffixes: B examples, F features, H hidden, C classes.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_EPSILON = 1e-8


class OnlineModel(Protocol):
    """Foretells classes, and learns."""

    def shares(self, x_F: FloatArray) -> FloatArray:
        """Probabilities of the classes [C]."""
        ...

    def learn(self, x_BF: FloatArray, label_B: IntArray) -> None:
        """One step down the gradient of the cross-entropy."""
        ...


class _AdaGrad:
    """Steps of a size of its own for each weight (Duchi, Hazan, Singer, 2011)."""

    def __init__(self, weight: FloatArray, rate: float) -> None:
        self.weight, self._rate = weight, rate
        self._sum = np.zeros_like(weight)

    def step(self, gradient: FloatArray) -> None:
        self._sum += gradient**2
        self.weight -= self._rate * gradient / (np.sqrt(self._sum) + _EPSILON)


def softmax(score_BC: FloatArray) -> FloatArray:
    """Rows that sum to one."""
    raised_BC = np.exp(score_BC - score_BC.max(axis=-1, keepdims=True))
    return raised_BC / raised_BC.sum(axis=-1, keepdims=True)


def _error(share_BC: FloatArray, label_B: IntArray) -> FloatArray:
    error_BC = share_BC.copy()
    error_BC[np.arange(len(label_B)), label_B] -= 1.0
    return error_BC / len(label_B)


class OnlineLogistic:
    """Multinomial logistic regression."""

    def __init__(self, num_features: int, num_classes: int, rate: float = 0.1) -> None:
        self._weight = _AdaGrad(np.zeros((num_features + 1, num_classes)), rate)

    def shares(self, x_F: FloatArray) -> FloatArray:
        return softmax(np.append(x_F, 1.0) @ self._weight.weight)

    def learn(self, x_BF: FloatArray, label_B: IntArray) -> None:
        x_BF = np.hstack([x_BF, np.ones((len(x_BF), 1))])
        self._weight.step(x_BF.T @ _error(softmax(x_BF @ self._weight.weight), label_B))


class OnlineNet:
    """One hidden layer of rectified units."""

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
