"""Parallel work: jobs that depend only on their workers' initial object and on their arguments.

So it does not matter which worker does which job, or how many workers there are: results are equal
bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class Pool(Protocol):
    """Workers, each with its own object."""

    def map(
        self,
        method: str,
        jobs: Sequence[Sequence[Any]],
        shared: Any = None,
        each: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Call a method of the workers' objects for each job; return the results in order.

        Args:
            method: its name.
            jobs: its arguments after the first, for each job. The first jobs start first.
            shared: its first argument, the same for all jobs.
            each: called with the number and the result of each job when it is done.

        Raises:
            InputError: the method raised it, or no worker is left.
        """
        ...


class Compute(Protocol):
    """A place where jobs run."""

    def pool(self, make: Callable[..., Any], *arguments: Any) -> AbstractContextManager[Pool]:
        """Start workers that each make an object.

        Args:
            make: returns the object of a worker.
            arguments: of ``make``.
        """
        ...

    def training(self, *arguments: Any) -> AbstractContextManager[Any]:
        """Start workers that play the episodes of a training on many problems.

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
    """Let the code in this context run its jobs in a given place.

    Args:
        compute: where jobs run; None: work is not split into jobs.
    """
    _chosen.append(compute)
    try:
        yield
    finally:
        _chosen.pop()


def chosen() -> Compute | None:
    """Return where jobs run in this context; None: work is not split into jobs."""
    return _chosen[-1] if _chosen else None
