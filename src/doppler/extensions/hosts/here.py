"""Runs jobs one after another, in this process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from doppler.extensions.hosts.spread_training import spread_training
from doppler.support.compute.contract import Pool
from doppler.training.reinforcement import Spread


class Here:
    """A place for jobs (`contract.Compute`) inside a process that is itself a worker."""

    @contextmanager
    def pool(self, make: Callable[..., Any], *arguments: Any) -> Iterator[Pool]:
        """Make the one worker of this process (see `contract.Compute`).

        Args:
            make: returns the worker's object.
            arguments: of ``make``.
        """
        yield _One(make(*arguments))

    def training(self, *arguments: Any) -> AbstractContextManager[Spread]:
        """Make a training whose episodes are played here (see `contract.Compute`).

        Args:
            arguments: of `Player`.
        """
        return spread_training(self, *arguments)


class _One:
    """A pool (`contract.Pool`) of one worker, in this process."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def map(
        self,
        method: str,
        jobs: Sequence[Sequence[Any]],
        shared: Any = None,
        each: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        results = []
        for number, job in enumerate(jobs):
            results.append(getattr(self._worker, method)(shared, *job))
            if each is not None:
                each(number, results[-1])
        return results
