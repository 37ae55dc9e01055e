"""A router between two models that learns online which inputs are worth the large model.

Shape suffixes: N inputs, F features.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.programs.streams.stream import StreamInput, StreamSession
from doppler.extensions.programs.streams.text_features import (
    TextFeatures,
    check_scikit_learn,
    shape_features,
    words,
)
from doppler.support.errors import InputError
from doppler.support.options import Amount, Count, Positive, Share, checked

FloatArray = NDArray[np.float64]
SMALL, LARGE = 0, 1
# Number of inputs between two solutions of the regressions, and number of inputs over which the
# router corrects a deviation from its share.
_EVERY, _HORIZON = 20, 200
_CONSTANT = 1e-3  # regularisation of the constant terms, in place of the ridge


@checked
@dataclass(frozen=True, kw_only=True)
class Router:
    """Send the inputs with the largest expected gain to the large model.

    A ridge regression predicts from an input's features how right a model is, and how much better
    the large one is. It learns only from the outcomes of models that were run. An input goes to the
    large model if that difference is above a threshold. The threshold is the one that the given
    share of the inputs so far exceeded.

    Attributes:
        share: of the inputs that go to the large model.
        price: of a run of the large model, in place of a share: the large model gets the inputs
            with a larger expected gain than this.
        explore: share of the inputs that are sent at random, at the beginning; it falls with the
            square root of the number of inputs.
        directions: number of word features, see TextFeatures.
        ridge: regularisation of the regressions.
        growth: word features are computed anew whenever the stream has grown by this factor.

    Source: two-armed contextual bandit with decaying exploration, as epsilon-greedy in Auer,
    Cesa-Bianchi, Fischer, 2002; the estimate per arm as in LinUCB, Li and others, 2010.
    """

    share: Share = 0.5
    price: Amount | None = None
    explore: Share = 1.0
    directions: Count = 40
    ridge: Positive = 3.0
    growth: Positive = 1.5
    name: ClassVar[str] = "router"

    def __post_init__(self) -> None:
        check_scikit_learn("method=router")
        if self.growth <= 1.0:
            raise InputError(f"router.growth: must be above 1, got {self.growth}")

    def check(self, session: StreamSession) -> None:
        if (session.num_modules, len(session.backends)) != (1, 2):
            raise InputError("router: chooses between two backends of one module")

    def play(self, session: StreamSession, rng: np.random.Generator) -> None:
        state = Routing(self, session, rng)
        for one in session:
            choice = state.choose(one)
            state.learn(choice, session.run(choice))


class Routing:
    """The state of a router within a stream.

    Args:
        router: its settings.
        session: one pass over the stream.
        rng: the only source of randomness.
    """

    def __init__(self, router: Router, session: StreamSession, rng: np.random.Generator) -> None:
        self._router, self._rng = router, rng
        self._texts: Any = None
        if session.has_texts:
            self._texts = TextFeatures(router.directions, int(rng.integers(2**31)))
        size = self._texts.size if self._texts else 1 + session.num_features
        self._feature_NF = np.zeros((session.num, size))
        self._shape_NS: list[list[float]] = []
        self._words: list[Any] = []
        self._choice = np.zeros(session.num, np.int64)
        self._right = np.zeros(session.num)
        self._num, self._next_fit = 0, 60.0
        self._square, self._product = np.zeros((2 * size, 2 * size)), np.zeros(2 * size)
        self._gain, self._solved = np.zeros(size), 0
        self._sorted = np.zeros(0)

    def choose(self, one: StreamInput, handicap: float = 0.0) -> int:
        """Return the model for an input, SMALL or LARGE.

        Args:
            one: the input.
            handicap: gain that the large model must bring in addition, for example because its
                queue is longer.
        """
        n, router = self._num, self._router
        self._feature_NF[n] = self._features(one)
        share = router.share
        if router.price is None and share in (0.0, 1.0):
            return int(share)
        if router.price is None and n:
            used = self._choice[:n].sum()
            share = float(np.clip(share + (share * n - used) / _HORIZON, 0.0, 1.0))
        if self._rng.random() < router.explore * (n + 1) ** -0.5 or not len(self._sorted):
            return int(self._rng.random() < share)
        gain = float(self._feature_NF[n] @ self._gain) - handicap
        if router.price is not None:
            return int(gain > router.price)
        return int(np.searchsorted(self._sorted, gain) >= (1.0 - share) * len(self._sorted))

    def learn(self, choice: int, right: float) -> None:
        """Learn the outcome of the present input.

        Args:
            choice: model that ran it.
            right: how right its answer is, from 0 to 1.
        """
        self._choice[self._num], self._right[self._num] = choice, right
        self._num += 1
        if self._texts is not None and self._num >= self._next_fit:
            self._next_fit *= self._router.growth
            self._fit_words()
        elif self._num % _EVERY:
            return
        self._solve()

    def _features(self, one: StreamInput) -> FloatArray:
        if self._texts is None:
            return np.append(1.0, one.features)
        self._shape_NS.append(shape_features(one.text))
        self._words.append(words(one.text))
        return self._texts.numbers(np.array(self._shape_NS[-1:]), self._words[-1])[0]

    def _fit_words(self) -> None:
        from scipy.sparse import vstack

        counts = vstack(self._words).tocsr()
        self._texts.fit(counts)
        self._feature_NF[: self._num] = self._texts.numbers(np.array(self._shape_NS), counts)
        self._square[:], self._product[:], self._solved = 0.0, 0.0, 0

    def _solve(self) -> None:
        """Solve the regression on all outcomes so far, and predict the gains of all inputs."""
        size, new = self._feature_NF.shape[1], slice(self._solved, self._num)
        x_NF = self._feature_NF[new]
        x_NF = np.hstack([x_NF, (self._choice[new, None] - 0.5) * x_NF])
        self._square += x_NF.T @ x_NF
        self._product += x_NF.T @ self._right[new]
        self._solved = self._num
        weight = np.repeat([1.0, 2.0], size) * self._router.ridge
        weight[[0, size]] = _CONSTANT
        self._gain = np.linalg.solve(self._square + np.diag(weight), self._product)[size:]
        self._sorted = np.sort(self._feature_NF[: self._num] @ self._gain)
