"""Runs jobs on the workers of a Ray cluster: processes of one core each, which may come and go."""

import logging
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from doppler.extensions.hosts.ray_cluster import connected, num_cpus
from doppler.extensions.hosts.spread_training import spread_training
from doppler.support.compute.contract import Pool
from doppler.support.compute.threads import limit_threads
from doppler.support.errors import InputError
from doppler.support.options import checked, within
from doppler.training.reinforcement import Spread

_ASKED_BY = "compute"
_MOST_WORKERS = 1024
Workers = Annotated[int, within(1, _MOST_WORKERS)]
# Seconds without any worker after which a warning is logged, and after which the run fails.
_TOLD_S, _ROOM_S = 5.0, 300.0
# How often a job is started before the run fails; a job may be what kills its workers.
_ATTEMPTS = 3


@checked
@dataclass(frozen=True, kw_only=True)
class OnRay:
    """A place for jobs: a running Ray cluster, or one that is started on this machine.

    Attributes:
        workers: number of processes of one core each; None: as many as the cluster has cores.
    """

    workers: Workers | None = None

    @contextmanager
    def pool(self, make: Callable[..., Any], *arguments: Any) -> Iterator[Pool]:
        """Start workers on the cluster (see `contract.Compute`).

        Args:
            make: returns the object of a worker.
            arguments: of ``make``.

        Raises:
            InputError: Ray is not installed, or no worker can be made.
        """
        ray = connected(_ASKED_BY)
        num = self.workers or max(1, int(sum(num_cpus(ray))))
        pool = _Workers(ray, num, make, arguments)
        try:
            yield pool
        finally:
            pool.close()

    def training(self, *arguments: Any) -> AbstractContextManager[Spread]:
        """Make a training whose episodes the workers play (see `contract.Compute`).

        Args:
            arguments: of `Player`.
        """
        return spread_training(self, *arguments)


class _Worker:
    """The class of the Ray actors."""

    def __init__(self, path: Sequence[str], given: bytes) -> None:
        sys.path += [one for one in path if one not in sys.path]  # to import the job's classes
        limit_threads(1)
        make, arguments = pickle.loads(given)
        self._object = make(*arguments)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)

    def is_there(self) -> None:
        """Do nothing; returns once the actor is made."""

    def do(self, method: str, shared: bytes, job: bytes) -> bytes:
        """Do one job. It comes as bytes because arrays that Ray passes itself are read-only."""
        told = pickle.loads(shared), *pickle.loads(job)
        return pickle.dumps(getattr(self._object, method)(*told))


class _Workers:
    """A pool (`contract.Pool`). A lost worker is replaced, and another one does its job."""

    def __init__(self, ray: Any, num: int, make: Callable[..., Any], arguments: Any) -> None:
        self._ray = ray
        self._given = ray.put(ray.cloudpickle.dumps((make, arguments)))
        self._class = ray.remote(_Worker).options(num_cpus=1)
        self._actors: set[Any] = set()
        self._coming: dict[Any, Any] = {}  # by the Ray reference that is ready when one is idle
        self._idle: list[Any] = []
        for _ in range(num):
            self._begin()

    def _begin(self) -> None:
        actor = self._class.remote(sys.path, self._given)
        self._actors.add(actor)
        self._coming[actor.is_there.remote()] = actor

    def map(
        self,
        method: str,
        jobs: Sequence[Sequence[Any]],
        shared: Any = None,
        each: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        batch = _Batch(self._ray, method, jobs, shared)
        patience = _Patience()
        while batch.is_open:
            while batch.waiting and self._idle:
                batch.give(self._idle.pop())
            ready, _ = self._ray.wait([*batch.at_work, *self._coming], timeout=1.0)
            for one in ready:
                if one in self._coming:
                    self._arrived(one)
                    continue
                try:
                    actor, number = batch.take(one)
                except self._ray.exceptions.RayTaskError as error:
                    # The other workers are idle again once they have done their jobs.
                    self._coming |= {asked: actor for asked, (actor, _) in batch.at_work.items()}
                    raise error.cause from None
                if number is None:
                    self._actors.discard(actor)
                    self._begin()
                    continue
                self._idle.append(actor)
                if each is not None:
                    each(number, batch.results[number])
            patience.look(bool(batch.at_work or self._idle))
        return batch.results

    def _arrived(self, one: Any) -> None:
        """Take in a worker that is ready, or replace it if it died."""
        actor = self._coming.pop(one)
        try:
            self._ray.get(one)
        except self._ray.exceptions.RayActorError as error:
            self._actors.discard(actor)
            if "creation task" in str(error):  # another attempt would fail, too
                line = str(error).strip().splitlines()[-1]
                raise InputError(f"{_ASKED_BY}: a worker cannot be made: {line}") from None
            self._begin()
        except self._ray.exceptions.RayTaskError:  # from a batch that failed
            self._idle.append(actor)
        else:
            self._idle.append(actor)

    def close(self) -> None:
        """End the workers."""
        for actor in self._actors:
            with suppress(Exception):
                self._ray.kill(actor)


class _Batch:
    """The jobs of one call of `map`, and their results."""

    def __init__(self, ray: Any, method: str, jobs: Sequence[Any], shared: Any) -> None:
        self._ray, self._method = ray, method
        self._jobs = [ray.cloudpickle.dumps(job) for job in jobs]
        self._shared = ray.put(ray.cloudpickle.dumps(shared))
        self._attempts = [0] * len(jobs)
        self.results: list[Any] = [None] * len(jobs)
        self.waiting = deque(range(len(jobs)))
        self.at_work: dict[Any, tuple[Any, int]] = {}

    @property
    def is_open(self) -> bool:
        """Whether some job is not done."""
        return bool(self.waiting or self.at_work)

    def give(self, actor: Any) -> None:
        """Give a worker the next job."""
        number = self.waiting.popleft()
        self._attempts[number] += 1
        asked = actor.do.remote(self._method, self._shared, self._jobs[number])
        self.at_work[asked] = actor, number

    def take(self, asked: Any) -> tuple[Any, int | None]:
        """Return the worker that has ended, and the number of its job.

        The number is None if the worker is lost; its job waits again.

        Raises:
            InputError: several workers died at this job.
            RayTaskError: the job raised an error.
        """
        actor, number = self.at_work.pop(asked)
        try:
            self.results[number] = pickle.loads(self._ray.get(asked))
        except self._ray.exceptions.RayActorError:
            if self._attempts[number] == _ATTEMPTS:
                what = f"{_ATTEMPTS} workers died at the same job"
                raise InputError(f"{_ASKED_BY}: {what}") from None
            self.waiting.appendleft(number)
            return actor, None
        return actor, number


class _Patience:
    """Watches how long there is no worker at all."""

    def __init__(self) -> None:
        self._since_s, self._is_told = time.monotonic(), False

    def look(self, is_somebody_there: bool) -> None:
        """Log a warning, and at last raise an InputError, if there is no worker for too long."""
        now_s = time.monotonic()
        if is_somebody_there:
            self._since_s = now_s
        elif now_s > self._since_s + _ROOM_S:
            raise InputError(f"{_ASKED_BY}: the Ray cluster had no worker for {_ROOM_S:g} s")
        elif now_s > self._since_s + _TOLD_S and not self._is_told:
            self._is_told = True
            logging.getLogger(__name__).warning("waiting for workers of the Ray cluster")
