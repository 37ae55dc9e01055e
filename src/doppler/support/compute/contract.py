"""What may be spread: jobs that depend on nothing but what workers are made with, and themselves.

So it does not matter who does which job, nor how many workers there are: results are the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class Pool(Protocol):
    """Workers, each with an object of its own."""

    def map(
        self,
        method: str,
        jobs: Sequence[Sequence[Any]],
        shared: Any = None,
        each: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """What the objects' method returns for each job, in their order.

        Args:
            method: its name.
            jobs: its arguments behind the first, of each job; the first jobs begin first.
            shared: its first argument, of all.
            each: is told of each job, when it is done, by its number.

        Raises:
            InputError: what the method raised, or no worker is left.
        """
        ...


class Compute(Protocol):
    """Where jobs are done."""

    def pool(self, make: Callable[..., Any], *arguments: Any) -> AbstractContextManager[Pool]:
        """Workers, each of which makes an object."""
        ...

    def training(self, *arguments: Any) -> AbstractContextManager[Any]:
        """Workers that play the episodes of a training on many problems.

        Args:
            arguments: the policy, the system, the problems to train on and those to try, the
                options of learning, the number of updates, and the seed.

        Returns:
            A training.reinforcement.Spread.
        """
        ...


_chosen: list[Compute | None] = []


@contextmanager
def computing(compute: Compute | None) -> Iterator[None]:
    """What runs here spreads what it can; None: nothing."""
    _chosen.append(compute)
    try:
        yield
    finally:
        _chosen.pop()


def chosen() -> Compute | None:
    """Where jobs of what runs are done; None: nothing is cut into jobs."""
    return _chosen[-1] if _chosen else None
