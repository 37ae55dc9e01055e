"""A cascade of models that learns online from an expert, which it asks less and less often.

Shape suffixes: L levels without the expert, F features, C classes, B examples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.programs.streams.labelled import LabelledSession
from doppler.extensions.programs.streams.online_models import OnlineLogistic, OnlineModel, OnlineNet
from doppler.support.errors import InputError
from doppler.support.options import Count, Positive, Share, checked

FloatArray = NDArray[np.float64]
_HALF = 0.5
_LEARNED = 2  # levels below the expert
_KEPT = 0.99  # decay of the mean square of a gradient at each step
_RECENT = 200  # examples from which deferrals learn
_TOP = 3  # number of a model's largest probabilities that its deferral looks at


@checked
@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Logistic regression, small network, expert: each input goes up until a level answers it.

    An input goes to the expert if the last level defers it, and also with a probability that
    decays, whatever the levels would answer. The models below learn the expert's answer together
    with earlier examples. Each level decides with its deferral, a logistic function of its model's
    probabilities, whether to pass an input on. Deferrals take gradient steps towards the lower
    cost: price x cost of the levels that run, plus 1 for an answer that differs from the expert's.

    Attributes:
        price: loss that a cost of 1 is worth.
        asks: probability of asking the expert directly, at the beginning.
        decay: factor of this probability per input.
        least: smallest probability.
        rate: step size of deferrals.
        replayed: number of earlier examples learned together with each new one.
        steps: steps of models and deferrals per new example.
        fixed: for each level the smallest probability with which it answers, in place of deferrals.

    Source: Nie, Ding, Hu, Jermaine, Chaudhuri, "Online cascade learning for efficient inference
    over streams", arXiv 2402.04513: the cascade imitates its last model, models and deferrals learn
    by online gradient descent from what that model has annotated, and the probability of asking it
    decays. Deviations: models and their sizes; deferrals see the three largest probabilities, have
    a logistic loss in which an error weighs what it costs, and decide without randomness; examples
    are replayed from the whole past, to deferrals with the probabilities before the models learned
    them.
    """

    price: Positive = 0.3
    asks: Share = 1.0
    decay: Share = 0.97
    least: Share = 0.05
    rate: Positive = 0.02
    replayed: Count = 32
    steps: Count = 8
    fixed: Sequence[Share] | None = None
    name: ClassVar[str] = "cascade"
    session_kind: ClassVar[type] = LabelledSession

    def __post_init__(self) -> None:
        if self.fixed is not None and len(self.fixed) != _LEARNED:
            raise InputError(f"cascade.fixed: must be {_LEARNED} numbers, got {len(self.fixed)}")

    def play(self, session: LabelledSession, rng: np.random.Generator) -> None:
        state = _Cascading(self, session, rng)
        for one in session:
            state.answer(one.number, one.features)


class _Deferral:
    """Decides whether to pass an input on: a logistic regression, with errors weighted by cost."""

    def __init__(self) -> None:
        self._weight = np.zeros(_TOP + 3)
        self._weight[0] = 1.0  # at first every input is passed on
        self._sum = np.zeros(_TOP + 3)

    def goes_on(self, share_C: FloatArray) -> float:
        """Return the probability that passing the input on is right."""
        return _logistic(float(self._features(share_C) @ self._weight))

    def step(self, share_C: FloatArray, dearer: float, rate: float) -> None:
        """Learn that passing the input on costs ``dearer`` more than answering it."""
        feature_F = self._features(share_C)
        should = float(dearer < 0.0)
        on = _logistic(float(feature_F @ self._weight))
        gradient_F = abs(dearer) * (on - should) * feature_F
        self._sum = _KEPT * self._sum + (1.0 - _KEPT) * gradient_F**2
        self._weight -= rate * gradient_F / (np.sqrt(self._sum) + 1e-3)

    @staticmethod
    def _features(share_C: FloatArray) -> FloatArray:
        top = np.sort(share_C)[::-1][:_TOP]
        doubt = -float((share_C * np.log(share_C + 1e-12)).sum()) / math.log(len(share_C))
        sure = math.log((top[0] + 1e-6) / (1.0 - top[0] + 1e-6)) / 5.0
        return np.concatenate([[1.0, doubt, sure], top, np.zeros(_TOP - len(top))])


class _Cascading:
    """The state of a cascade within a stream."""

    def __init__(
        self, cascade: Cascade, session: LabelledSession, rng: np.random.Generator
    ) -> None:
        self._cascade, self._session, self._rng = cascade, session, rng
        size = (session.num_features, session.num_classes)
        self._models: list[OnlineModel] = [OnlineLogistic(*size), OnlineNet(*size, rng)]
        self._deferrals = [_Deferral() for _ in self._models]
        self._x = np.zeros((session.num, session.num_features))
        self._label = np.zeros(session.num, np.int64)
        self._num = 0
        self._believed: list[list[tuple[FloatArray, int]]] = []

    def answer(self, number: int, x_F: FloatArray) -> None:
        """Answer an input with the level that stops; learn if the expert was asked."""
        cascade, session = self._cascade, self._session
        asks = max(cascade.least, cascade.asks * cascade.decay**number)
        outright = self._rng.random() < asks
        for level, model in enumerate(self._models):
            if outright:
                break
            session.pay(level)
            share_C = model.shares(x_F)
            if self._stops(level, share_C):
                session.answer(int(share_C.argmax()), level)
                return
        label = session.ask()
        session.answer(label, len(self._models))
        self._learn(x_F, label)

    def _stops(self, level: int, share_C: FloatArray) -> bool:
        if self._cascade.fixed is not None:
            return bool(share_C.max() >= self._cascade.fixed[level])
        return self._deferrals[level].goes_on(share_C) < _HALF

    def _learn(self, x_F: FloatArray, label: int) -> None:
        # Probabilities from before the models learn this label: afterwards they are too sure.
        self._believed.append([(model.shares(x_F), label) for model in self._models])
        recent = self._believed[-_RECENT:]
        for chosen in [*self._rng.integers(len(recent), size=self._cascade.steps), len(recent) - 1]:
            self._step_deferrals(recent[chosen])
        self._x[self._num], self._label[self._num] = x_F, label
        self._num += 1
        for _ in range(self._cascade.steps):
            others = self._rng.integers(self._num, size=min(self._num, self._cascade.replayed))
            chosen = np.append(others, self._num - 1)
            for model in self._models:
                model.learn(self._x[chosen], self._label[chosen])

    def _step_deferrals(self, believed: list[tuple[FloatArray, int]]) -> None:
        """Let each deferral learn the cost of passing on, as the levels above decide now."""
        price, cost = self._cascade.price, self._session.cost
        beyond = price * cost[-1]  # the expert counts as always right
        for level in reversed(range(len(self._models))):
            share_C, label = believed[level]
            wrong = float(share_C.argmax() != label)
            deferral = self._deferrals[level]
            on = deferral.goes_on(share_C) >= _HALF
            deferral.step(share_C, beyond - wrong, self._cascade.rate)
            beyond = price * cost[level] + (beyond if on else wrong)


def _logistic(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, score))))
