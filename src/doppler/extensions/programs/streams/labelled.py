"""Streams of inputs that have a class each, which a cascade of models predicts.

Shape suffixes: N inputs, F features, L levels.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.programs.streams.recording import stream_graph
from doppler.extensions.programs.streams.stream import (
    Order,
    Played,
    StreamGraph,
    StreamInput,
    order_of,
)
from doppler.extensions.programs.streams.text_features import check_scikit_learn
from doppler.support.options import Amount, Share, checked

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
LEVELS = ("logistic", "net", "expert")


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledStream:
    """Inputs, their classes, and the classes that an expert predicts.

    Attributes:
        features: [N, F] of each input.
        label: [N] classes, by which answers are judged.
        expert: [N] the expert's answers, from which models learn.
        cost: [L] of running each level of a cascade; the expert is the last one.
        backends: names of the levels.
        num_modules: of the program, 1.
    """

    features: FloatArray
    label: IntArray
    expert: IntArray
    cost: FloatArray
    backends: tuple[str, ...] = LEVELS
    num_modules: int = 1

    def __len__(self) -> int:
        return len(self.label)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(max(self.label.max(), self.expert.max())) + 1

    @property
    def digest(self) -> str:
        """A hash that is equal for equal streams."""
        arrays = (self.features, self.label, self.expert, self.cost)
        return hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()[:16]

    def in_order(self, order: Order, rng: np.random.Generator) -> IntArray:
        """Return the inputs in an order; ``by_group`` gives class after class.

        Args:
            order: see `order_of`.
            rng: of random orders.
        """
        return order_of(self.label, order, rng)

    def session(self, order_N: IntArray) -> "LabelledSession":
        """Start one pass over the stream.

        Args:
            order_N: order of the inputs.
        """
        return LabelledSession(self, order_N)


class LabelledSession:
    """One pass over a stream; asking for the expert's answer costs the expert's price.

    Args:
        stream: that is played.
        order_N: order of its inputs.
    """

    def __init__(self, stream: LabelledStream, order_N: IntArray) -> None:
        self.cost, self.num = stream.cost, len(order_N)
        self.num_features, self.num_classes = stream.features.shape[1], stream.num_classes
        self._stream, self._order, self._at = stream, order_N, -1
        self._answer = np.full(self.num, -1, np.int64)
        self._level = np.full(self.num, -1, np.int64)
        self._cost = np.zeros(self.num)

    def __iter__(self) -> Iterator[StreamInput]:
        for number, n in enumerate(self._order):
            assert self._at < 0 or self._level[self._at] >= 0, "the last input has no answer"
            self._at = number
            yield StreamInput(number, "", self._stream.features[n])

    def pay(self, level: int) -> None:
        """Pay for running a level on the present input.

        Args:
            level: of the cascade.
        """
        self._cost[self._at] += self.cost[level]

    def ask(self) -> int:
        """Pay for the expert, and return its answer to the present input."""
        self.pay(len(self.cost) - 1)
        return int(self._stream.expert[self._order[self._at]])

    def answer(self, label: int, level: int) -> None:
        """Answer the present input.

        Args:
            label: predicted class.
            level: that predicts it.
        """
        assert self._level[self._at] < 0, "an input is answered once"
        self._answer[self._at], self._level[self._at] = label, level

    def played(self) -> Played:
        """Return the choices and outcomes after the last input."""
        right_N = self._answer == self._stream.label[self._order]
        return Played(
            order=self._order,
            choice=self._level[:, None],
            right=right_N.astype(np.float64),
            cost=self._cost,
        )


@checked
def digits(
    *, name: str = "digits", taught: Share = 0.3, logistic: Amount = 0.001, net: Amount = 0.01
) -> StreamGraph:
    """Return a stream of handwritten digits, 8 x 8 pixels each, which scikit-learn ships.

    The expert is a vote of nearest neighbours, a support vector machine and extremely randomised
    trees. It is trained on a share of the digits that is not part of the stream, and costs 1.

    Args:
        name: of the graph.
        taught: share of the digits that the expert is trained on.
        logistic: cost of running the logistic regression.
        net: cost of running the small network.

    Raises:
        InputError: scikit-learn is not installed.

    Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI, 1998.
    """
    check_scikit_learn("workload=digits")
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    pixels, label = np.asarray(loaded.data), np.asarray(loaded.target)
    order = np.random.default_rng(0).permutation(len(label))
    num = max(100, round(taught * len(label)))
    teaching, rest = order[:num], order[num:]
    stream = LabelledStream(
        features=np.ascontiguousarray(pixels[rest] / 16.0),
        label=label[rest].astype(np.int64),
        expert=_expert(pixels[teaching], label[teaching], pixels[rest]),
        cost=np.array([logistic, net, 1.0]),
    )
    return stream_graph(name, ["classify"], stream)


def _expert(pixels_NF: FloatArray, label_N: IntArray, asked_NF: FloatArray) -> IntArray:
    from sklearn.ensemble import ExtraTreesClassifier, VotingClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    vectors: Any = SVC  # its stubs know gamma as a text alone
    models = [
        ("neighbours", KNeighborsClassifier(3)),
        ("vectors", vectors(C=10.0, gamma=0.001)),
        ("trees", ExtraTreesClassifier(200, random_state=0)),
    ]
    vote = VotingClassifier(models, voting="hard").fit(pixels_NF, label_N)
    return np.asarray(vote.predict(asked_NF), dtype=np.int64)
