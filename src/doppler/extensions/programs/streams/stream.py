"""Streams: sequences of inputs of one program, whose outcomes are revealed as they are run.

A program has modules, and each module can run on any of several backends, from the cheapest to the
dearest. The outcomes of all backends are recorded, but an allocator sees only those of the backends
that it runs. Shape suffixes: N inputs, M modules, K backends, F features, G groups.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from doppler.graph import DataflowGraph
from doppler.support.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Order = Literal["random", "by_group", "as_recorded"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """Inputs, and how right each backend was on each of them.

    Attributes:
        backends: names [K], the cheapest first.
        right: [N, M, K] how right backend k was as module m on input n, from 0 to 1.
        cost: [K] of one run.
        features: [N, F] numbers that describe the inputs; F may be 0.
        group: [N] a number per subject or class, which ``order=by_group`` plays one after another.
        texts: [N] of the inputs, or empty.
        by_module: whether the features are those of the modules, one after another and equally many
            for each; otherwise each module sees all of them.
        outcome: how right a program is: with ``all`` the product over its modules, because they
            rely on each other; with ``mean`` their mean, because each answers a part.
        expected: [N, M, K] probabilities that `right` was drawn from, if they are known.
    """

    backends: tuple[str, ...]
    right: FloatArray
    cost: FloatArray
    features: FloatArray
    group: IntArray
    texts: tuple[str, ...] = ()
    by_module: bool = False
    outcome: Literal["all", "mean"] = "all"
    expected: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.right)

    @property
    def num_modules(self) -> int:
        """Number of modules, M."""
        return self.right.shape[1]

    @property
    def num_backends(self) -> int:
        """Number of backends, K."""
        return self.right.shape[2]

    @property
    def digest(self) -> str:
        """A hash that is equal for equal streams."""
        digest = hashlib.sha256(
            repr((self.backends, self.texts, self.by_module, self.outcome)).encode()
        )
        for array in (self.right, self.cost, self.features, self.group):
            digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def program_right(self, choice_NM: IntArray) -> FloatArray:
        """Return how right the program's answers [N] are.

        Args:
            choice_NM: backend of each module; one row is used for all inputs.
        """
        choice_NM = np.broadcast_to(choice_NM, self.right.shape[:2])
        chosen_NM = np.take_along_axis(self.right, choice_NM[:, :, None], axis=2)[:, :, 0]
        return self.joined(chosen_NM)

    def joined(self, right_NM: FloatArray) -> FloatArray:
        """Return how right a program is [N], see ``outcome``.

        Args:
            right_NM: how right each module is.
        """
        return right_NM.prod(axis=-1) if self.outcome == "all" else right_NM.mean(axis=-1)

    def program_cost(self, choice_NM: IntArray) -> FloatArray:
        """Return the mean cost [N] of a module.

        Args:
            choice_NM: backend of each module.
        """
        return self.cost[choice_NM].mean(axis=1)

    def in_order(self, order: Order, rng: np.random.Generator) -> IntArray:
        """Return the inputs [N] in an order.

        Args:
            order: see `order_of`.
            rng: of random orders.
        """
        return order_of(self.group, order, rng)

    def session(self, order_N: IntArray) -> "StreamSession":
        """Start one pass over the stream.

        Args:
            order_N: order of the inputs.
        """
        return StreamSession(self, order_N)


class AnyStream(Protocol):
    """Inputs that come one by one, of any kind of stream.

    Attributes:
        backends: names, the cheapest first.
        cost: of running each backend.
        num_modules: of the program.
        digest: a hash that is equal for equal streams.
    """

    @property
    def backends(self) -> tuple[str, ...]: ...

    @property
    def cost(self) -> FloatArray: ...

    @property
    def num_modules(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def in_order(self, order: Order, rng: np.random.Generator) -> IntArray:
        """Return the inputs [N] in an order.

        Args:
            order: see `order_of`.
            rng: of random orders.
        """
        ...

    def session(self, order_N: IntArray) -> Any:
        """Start one pass over the stream, which an allocator plays.

        Args:
            order_N: order of the inputs.
        """
        ...


def order_of(group_N: IntArray, order: Order, rng: np.random.Generator) -> IntArray:
    """Return the inputs [N] in an order.

    Args:
        group_N: group of each input.
        order: ``by_group`` gives groups one after another; the groups and the inputs of each are in
            random order.
        rng: of random orders.
    """
    if order == "as_recorded":
        return np.arange(len(group_N))
    shuffled_N = rng.permutation(len(group_N))
    if order == "random":
        return shuffled_N
    place_G = rng.permutation(int(group_N.max(initial=0)) + 1)
    return shuffled_N[np.argsort(place_G[group_N[shuffled_N]], kind="stable")]


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamGraph(DataflowGraph):
    """The program of a stream as a graph: one op per module.

    Attributes:
        stream: inputs of the program.
    """

    stream: AnyStream

    @property
    def digest(self) -> str:
        """A hash of the stream, which the graph itself does not contain."""
        return self.stream.digest


class StreamInput(NamedTuple):
    """What is known of an input before it is run.

    Attributes:
        number: its place in the pass.
        text: empty if the stream has none.
        features: [F] numbers that describe it.
    """

    number: int
    text: str
    features: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Played:
    """Choices and outcomes of a stream, in the order in which its inputs were played.

    Attributes:
        order: [N] inputs of the stream.
        choice: [N, M] backends.
        right: [N] how right each answer is, from 0 to 1.
        cost: [N] of each input.
    """

    order: IntArray
    choice: IntArray
    right: FloatArray
    cost: FloatArray

    @property
    def accuracy(self) -> float:
        """Mean of `right`."""
        return float(self.right.mean())

    @property
    def mean_cost(self) -> float:
        """Mean cost of an input."""
        return float(self.cost.mean())


class StreamSession:
    """One pass over a stream. It reveals only the outcomes of the backends that are run.

    Args:
        stream: that is played.
        order_N: order of its inputs.
    """

    def __init__(self, stream: Stream, order_N: IntArray) -> None:
        if not len(stream):
            raise InputError("workload: the stream has no inputs")
        self.backends, self.cost = stream.backends, stream.cost
        self.num_modules, self.num_features = stream.num_modules, stream.features.shape[1]
        self.has_texts = bool(stream.texts)
        self.by_module = stream.by_module
        shared = stream.num_modules if stream.by_module else 1
        self.num_module_features = self.num_features // shared
        self.num = len(order_N)
        self._stream = stream
        self._order = order_N
        self._choice = np.full((self.num, stream.num_modules), -1, dtype=np.int64)
        self._at = -1

    def __iter__(self) -> Iterator[StreamInput]:
        for number, n in enumerate(self._order):
            assert self._at < 0 or self._choice[self._at, 0] >= 0, "the last input was not run"
            self._at = number
            text = self._stream.texts[n] if self.has_texts else ""
            yield StreamInput(number, text, self._stream.features[n])

    def run(self, choice_M: IntArray | int) -> float:
        """Run the program on the present input.

        Args:
            choice_M: backend of each module, or one for all.

        Returns:
            How right the answer is, from 0 to 1.
        """
        assert self._choice[self._at, 0] < 0, "an input is run once"
        self._choice[self._at] = choice_M
        n = self._order[self._at]
        right_M = self._stream.right[n, np.arange(self.num_modules), self._choice[self._at]]
        return float(self._stream.joined(right_M))

    def played(self) -> Played:
        """Return the choices and outcomes after the last input."""
        ordered = self._stream.right[self._order]
        chosen_NM = np.take_along_axis(ordered, self._choice[:, :, None], axis=2)[:, :, 0]
        return Played(
            order=self._order,
            choice=self._choice,
            right=self._stream.joined(chosen_NM),
            cost=self._stream.program_cost(self._choice),
        )
