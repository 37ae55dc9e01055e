"""Allocators, which choose backends for the inputs of a stream, and controls that do not learn.

Shape suffixes: N inputs, M modules, K backends, C choices.
"""

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.programs.streams.stream import AnyStream, Played, Stream, StreamSession
from doppler.support.errors import InputError
from doppler.support.options import Amount, Share, checked, one_of

IntArray = NDArray[np.int64]
_MOST_CHOICES = 10_000  # largest number of combinations that best_fixed and oracle enumerate
WHICH = ("cheapest", "dearest")


class Allocator(Protocol):
    """Chooses a backend for each module of each input, and learns from the outcomes.

    An allocator that plays another kind of session than `StreamSession` has an attribute
    ``session_kind``. One that cannot play every session of its kind has a method
    ``check(session)``, which raises an InputError.
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def play(self, session: Any, rng: np.random.Generator) -> None:
        """Run every input of the session once, in its order.

        Args:
            session: one pass over a stream.
            rng: the only source of randomness.
        """
        ...


@runtime_checkable
class Hindsight(Protocol):
    """A control that knows all outcomes before it chooses."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def choices(self, stream: Stream) -> IntArray:
        """Return the backends [N, M] of all inputs, in recorded order.

        Args:
            stream: with all outcomes.
        """
        ...


def play(
    stream: AnyStream, order_N: IntArray, allocator: Allocator | Hindsight, rng: np.random.Generator
) -> Played:
    """Play a stream once.

    Args:
        stream: that is played.
        order_N: order of its inputs.
        allocator: sees the outcomes of the backends that it runs; a control in hindsight sees all.
        rng: of the allocator.

    Returns:
        The choices and outcomes.

    Raises:
        InputError: the allocator cannot play the stream.
    """
    check_fits(stream, allocator)
    session = stream.session(order_N)
    if isinstance(allocator, Hindsight):
        assert isinstance(stream, Stream)
        choice_NM = allocator.choices(stream)[order_N]
        for one in session:
            session.run(choice_NM[one.number])
    else:
        allocator.play(session, rng)
    return session.played()


def check_fits(stream: AnyStream, allocator: Allocator | Hindsight) -> None:
    """Refuse an allocator that cannot play a stream.

    Args:
        stream: to play.
        allocator: that should play it.

    Raises:
        InputError: the allocator is for another kind of streams, or for another number of backends.
    """
    session = stream.session(np.arange(len(stream)))
    if not isinstance(session, getattr(allocator, "session_kind", StreamSession)):
        raise InputError(f"method={allocator.name}: cannot play this workload's stream")
    if hasattr(allocator, "check"):
        allocator.check(session)  # pyright: ignore


@checked
@dataclass(frozen=True, kw_only=True)
class Always:
    """Use one backend for all modules of all inputs.

    Attributes:
        which: ``cheapest`` or ``dearest``.
    """

    which: Annotated[str, one_of(WHICH)]

    @property
    def name(self) -> str:
        return {"cheapest": "always_small", "dearest": "always_large"}[self.which]

    def play(self, session: StreamSession, rng: np.random.Generator) -> None:
        choose = np.argmin if self.which == "cheapest" else np.argmax
        for _ in session:
            session.run(int(choose(session.cost)))


@checked
@dataclass(frozen=True, kw_only=True)
class RandomMixture:
    """Use the dearest backend for a random share of all modules of all inputs, else the cheapest.

    It can have any cost in between without learning. A router has to be better at the same cost.

    Attributes:
        share: of the dearest backend.
    """

    share: Share = 0.5
    name: ClassVar[str] = "random_mixture"

    def play(self, session: StreamSession, rng: np.random.Generator) -> None:
        small, large = int(session.cost.argmin()), int(session.cost.argmax())
        for _ in session:
            is_large_M = rng.random(session.num_modules) < self.share
            session.run(np.where(is_large_M, large, small))


@checked
@dataclass(frozen=True, kw_only=True)
class BestFixed:
    """Use the same backends for all inputs: those with the best accuracy - price x cost.

    It knows the outcomes of all inputs.

    Attributes:
        price: accuracy that a cost of 1 is worth.
    """

    price: Amount = 0.1
    name: ClassVar[str] = "best_fixed"

    def choices(self, stream: Stream) -> IntArray:
        choice_CM = all_choices(stream)
        right_C = np.array([stream.program_right(one[None]).mean() for one in choice_CM])
        worth_C = right_C - self.price * stream.cost[choice_CM].mean(axis=1)
        return np.repeat(choice_CM[None, worth_C.argmax()], len(stream), axis=0)


@checked
@dataclass(frozen=True, kw_only=True)
class Oracle:
    """Know the outcome of every backend, and use dear ones where they gain most for their cost.

    Attributes:
        share: largest cost, as a share of the cost of the dearest backend for everything.
        price: gain in accuracy that a cost of 1 must bring.
    """

    share: Share = 1.0
    price: Amount = 0.0
    name: ClassVar[str] = "oracle"

    def choices(self, stream: Stream) -> IntArray:
        choice_CM = all_choices(stream)
        cost_C = stream.cost[choice_CM].mean(axis=1)
        right_NC = np.stack([stream.program_right(one[None]) for one in choice_CM], axis=1)
        cheapest, every_N = int(cost_C.argmin()), np.arange(len(stream))
        price = max(self.price, 1e-9)  # not 0, so that the cheaper of equal ones is chosen
        best_N = (right_NC - price * cost_C).argmax(axis=1)
        gain_N = right_NC[every_N, best_N] - right_NC[:, cheapest]
        extra_N = cost_C[best_N] - cost_C[cheapest]
        order_N = np.argsort(-gain_N / np.maximum(extra_N, 1e-12), kind="stable")
        room = self.share * float(stream.cost.max()) * len(stream) - cost_C[cheapest] * len(stream)
        paid_N = np.cumsum(extra_N[order_N])
        best_N[order_N[paid_N > room * (1 + 1e-12)]] = cheapest
        return choice_CM[best_N]


def has_few_choices(stream: Stream) -> bool:
    """Return whether `all_choices` lists the combinations of backends.

    Args:
        stream: whose modules and backends are combined.
    """
    return stream.num_backends**stream.num_modules <= _MOST_CHOICES


def all_choices(stream: Stream) -> IntArray:
    """Return all combinations of backends for the modules [C, M].

    Args:
        stream: whose modules and backends are combined.

    Raises:
        InputError: there are too many.
    """
    if not has_few_choices(stream):
        raise InputError(
            f"workload: {stream.num_backends} backends for {stream.num_modules} modules have more "
            f"than {_MOST_CHOICES:,} combinations"
        )
    backends = range(stream.num_backends)
    return np.array(list(product(backends, repeat=stream.num_modules)), dtype=np.int64)
