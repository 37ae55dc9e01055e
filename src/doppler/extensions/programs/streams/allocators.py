"""What allocates backends to the inputs of a stream, and controls that learn nothing.

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
_MOST_CHOICES = 10_000  # of backends for all modules, between which best_fixed and oracle choose
WHICH = ("cheapest", "dearest")


class Allocator(Protocol):
    """Chooses a backend for each module of each input, and learns from what it ran.

    What plays another kind of session than `StreamSession` names it: ``session_kind``. What cannot
    play some sessions of its kind has ``check(session)``, which raises an InputError.
    """

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def play(self, session: Any, rng: np.random.Generator) -> None:
        """Run every input of the session, once, in its order."""
        ...


@runtime_checkable
class Hindsight(Protocol):
    """A control that knows all outcomes before it chooses."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def choices(self, stream: Stream) -> IntArray:
        """Backends [N, M] of all inputs, as they are recorded."""
        ...


def play(
    stream: AnyStream, order_N: IntArray, allocator: Allocator | Hindsight, rng: np.random.Generator
) -> Played:
    """One pass over a stream.

    Args:
        stream: what is played.
        order_N: of its inputs.
        allocator: is told the outcomes of what it runs; a control in hindsight knows them all.
        rng: of the allocator.
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
    """Refuse what cannot play a stream.

    Raises:
        InputError: it is for streams of another kind, or for another number of backends.
    """
    session = stream.session(np.arange(len(stream)))
    if not isinstance(session, getattr(allocator, "session_kind", StreamSession)):
        raise InputError(f"method={allocator.name}: cannot play this workload's stream")
    if hasattr(allocator, "check"):
        allocator.check(session)  # pyright: ignore


@checked
@dataclass(frozen=True, kw_only=True)
class Always:
    """One backend for everything."""

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
    """The dearest backend for a share of all modules of all inputs, by lot; else the cheapest.

    What learns nothing can have any cost in between by this; so a router has to be better.
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
    """The same backends for all inputs, of the least mean loss + price x cost in hindsight."""

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
    """Whoever knows the outcome of every backend, and pays for the dear ones where that pays.

    Attributes:
        share: of what the dearest backend for everything would cost, at most; what gains most for
            what it costs comes first.
        price: of a cost of 1; a gain of less is not worth it.
    """

    share: Share = 1.0
    price: Amount = 0.0
    name: ClassVar[str] = "oracle"

    def choices(self, stream: Stream) -> IntArray:
        choice_CM = all_choices(stream)
        cost_C = stream.cost[choice_CM].mean(axis=1)
        right_NC = np.stack([stream.program_right(one[None]) for one in choice_CM], axis=1)
        cheapest, every_N = int(cost_C.argmin()), np.arange(len(stream))
        price = max(self.price, 1e-9)  # of equal ones the cheaper
        best_N = (right_NC - price * cost_C).argmax(axis=1)
        gain_N = right_NC[every_N, best_N] - right_NC[:, cheapest]
        extra_N = cost_C[best_N] - cost_C[cheapest]
        order_N = np.argsort(-gain_N / np.maximum(extra_N, 1e-12), kind="stable")
        room = self.share * float(stream.cost.max()) * len(stream) - cost_C[cheapest] * len(stream)
        paid_N = np.cumsum(extra_N[order_N])
        best_N[order_N[paid_N > room * (1 + 1e-12)]] = cheapest
        return choice_CM[best_N]


def all_choices(stream: Stream) -> IntArray:
    """Backends [C, M] of the modules, all combinations.

    Raises:
        InputError: more of them than there is time for.
    """
    if stream.num_backends**stream.num_modules > _MOST_CHOICES:
        raise InputError(
            f"workload: {stream.num_backends} backends for {stream.num_modules} modules are more "
            f"than {_MOST_CHOICES:,} programs to choose between"
        )
    backends = range(stream.num_backends)
    return np.array(list(product(backends, repeat=stream.num_modules)), dtype=np.int64)
