"""Streams: a sequence of inputs of one program, and what is told of each after it ran.

A program has modules; each can be run by any of some backends, from the cheapest to the dearest.
Outcomes of all backends are recorded, but whoever allocates learns only those of what it ran.
Shape suffixes: N inputs, M modules, K backends, F features.
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
    """Inputs, and how good each backend was on each of them.

    Attributes:
        backends: names [K], the cheapest first.
        right: [N, M, K] how good backend k was as module m of input n, from 0 to 1.
        cost: [K] of one run.
        texts: [N] of the inputs, or none.
        features: [N, F] numbers of the inputs, maybe none (F = 0).
        group: [N] what drifts in ``order=by_group``, a number per subject or class.
        by_module: features are those of the modules, one after another, as many of each; else each
            module looks at all of them.
        outcome: ``all``: modules rely on each other, a program is as right as the product of them;
            ``mean``: each answers a part.
        expected: [N, M, K] what `right` was drawn around, where that is known.
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
        """M."""
        return self.right.shape[1]

    @property
    def num_backends(self) -> int:
        """K."""
        return self.right.shape[2]

    @property
    def digest(self) -> str:
        """Equal for equal streams."""
        digest = hashlib.sha256(repr((self.backends, self.texts)).encode())
        for array in (self.right, self.cost, self.features, self.group):
            digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def program_right(self, choice_NM: IntArray) -> FloatArray:
        """How good the program's answers [N] are.

        Args:
            choice_NM: backends; of one row, the same for all inputs.
        """
        choice_NM = np.broadcast_to(choice_NM, self.right.shape[:2])
        chosen_NM = np.take_along_axis(self.right, choice_NM[:, :, None], axis=2)[:, :, 0]
        return self.joined(chosen_NM)

    def joined(self, right_NM: FloatArray) -> FloatArray:
        """How good a program is [N] whose modules are as good: see ``outcome``."""
        return right_NM.prod(axis=-1) if self.outcome == "all" else right_NM.mean(axis=-1)

    def program_cost(self, choice_NM: IntArray) -> FloatArray:
        """Mean cost [N] of a module."""
        return self.cost[choice_NM].mean(axis=1)

    def in_order(self, order: Order, rng: np.random.Generator) -> IntArray:
        """The inputs as they come; see `order_of`."""
        return order_of(self.group, order, rng)

    def session(self, order_N: IntArray) -> "StreamSession":
        """One pass."""
        return StreamSession(self, order_N)


class AnyStream(Protocol):
    """Inputs that come one by one, whatever is done with them.

    backends: names, the cheapest first. cost: of running each. digest: equal for equal streams.
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
        """The inputs [N] as they come."""
        ...

    def session(self, order_N: IntArray) -> Any:
        """One pass over them, which an allocator plays."""
        ...


def order_of(group_N: IntArray, order: Order, rng: np.random.Generator) -> IntArray:
    """Inputs [N] in an order.

    by_group: groups one after another, in a random order of groups and within each.
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
    """The program of a stream: one op per module."""

    stream: AnyStream

    @property
    def digest(self) -> str:
        """Of what the graph itself does not say."""
        return self.stream.digest


class StreamInput(NamedTuple):
    """What is known of an input before anything ran: its place in the stream, text, numbers."""

    number: int
    text: str
    features: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Played:
    """What became of a stream, in the order of its inputs.

    Attributes:
        order: [N] inputs of the stream.
        choice: [N, M] backends.
        right, cost: [N].
    """

    order: IntArray
    choice: IntArray
    right: FloatArray
    cost: FloatArray

    @property
    def accuracy(self) -> float:
        """Mean of what was right."""
        return float(self.right.mean())

    @property
    def mean_cost(self) -> float:
        """Of an input."""
        return float(self.cost.mean())


class StreamSession:
    """One pass over a stream: inputs come one by one, outcomes are told of what was run alone."""

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
        """Run the program on the present input; returns how right its answer is."""
        assert self._choice[self._at, 0] < 0, "an input is run once"
        self._choice[self._at] = choice_M
        n = self._order[self._at]
        right_M = self._stream.right[n, np.arange(self.num_modules), self._choice[self._at]]
        return float(self._stream.joined(right_M))

    def played(self) -> Played:
        """All of it, once the last input was run."""
        ordered = self._stream.right[self._order]
        chosen_NM = np.take_along_axis(ordered, self._choice[:, :, None], axis=2)[:, :, 0]
        return Played(
            order=self._order,
            choice=self._choice,
            right=self._stream.joined(chosen_NM),
            cost=self._stream.program_cost(self._choice),
        )
