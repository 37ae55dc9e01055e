"""Jobs on the workers of a Ray cluster: processes of one core each, which may come and go."""

import logging
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from doppler.compute.contract import Pool
from doppler.compute.ray_cluster import connected, num_cpus
from doppler.compute.threads import limit_threads
from doppler.errors import InputError
from doppler.options import checked, within

_ASKED_BY = "compute"
_MOST_WORKERS = 1024
Workers = Annotated[int, within(1, _MOST_WORKERS)]
# Without any worker: a person is told, and then it is given up.
_TOLD_S, _ROOM_S = 5.0, 120.0
# How often a job is begun anew whose worker died: one that kills its worker ends the run.
_ATTEMPTS = 3


@checked
@dataclass(frozen=True, kw_only=True)
class OnRay:
    """Where jobs are done: on a Ray cluster that runs, or one that is started on this machine.

    workers: processes of one core each; None: as many as the cluster has.
    """

    workers: Workers | None = None

    @contextmanager
    def pool(self, make: Callable[..., Any], *arguments: Any) -> Iterator[Pool]:
        """See contract.Compute.

        Raises:
            InputError: there is no Ray, or no room for any worker.
        """
        ray = connected(_ASKED_BY)
        num = self.workers or max(1, int(sum(num_cpus(ray))))
        pool = _Workers(ray, num, make, arguments)
        try:
            yield pool
        finally:
            pool.close()


class _Worker:
    """What Ray makes an actor of."""

    def __init__(self, path: Sequence[str], given: bytes) -> None:
        sys.path += [one for one in path if one not in sys.path]  # where else its classes lie
        limit_threads(1)
        make, arguments = pickle.loads(given)
        self._object = make(*arguments)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)

    def is_there(self) -> None:
        """Once it is made."""

    def do(self, method: str, shared: bytes, job: bytes) -> bytes:
        """One job. Bytes: arrays that Ray brings by itself could not be written to."""
        told = pickle.loads(shared), *pickle.loads(job)
        return pickle.dumps(getattr(self._object, method)(*told))


class _Workers:
    """See contract.Pool. A worker that is lost is replaced; its job is done by another."""

    def __init__(self, ray: Any, num: int, make: Callable[..., Any], arguments: Any) -> None:
        self._ray = ray
        self._given = ray.put(ray.cloudpickle.dumps((make, arguments)))
        self._class = ray.remote(_Worker).options(num_cpus=1)
        self._actors: set[Any] = set()
        self._coming: dict[Any, Any] = {}  # by what tells that one is there
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
        """See contract.Pool."""
        ray = self._ray
        dumps = ray.cloudpickle.dumps
        told = ray.put(dumps(shared))
        results: list[Any] = [None] * len(jobs)
        attempts = [0] * len(jobs)
        waiting, at_work = deque(range(len(jobs))), dict[Any, tuple[Any, int]]()
        begin_s, is_told = time.monotonic(), False
        while waiting or at_work:
            while waiting and self._idle:
                number, actor = waiting.popleft(), self._idle.pop()
                attempts[number] += 1
                at_work[actor.do.remote(method, told, dumps(jobs[number]))] = actor, number
            ready, _ = ray.wait([*at_work, *self._coming], timeout=1.0)
            for one in ready:
                is_new = one in self._coming
                actor, number = (self._coming.pop(one), -1) if is_new else at_work.pop(one)
                try:
                    found = ray.get(one)
                except ray.exceptions.RayActorError as error:
                    self._replace(actor, error, is_new)
                    if not is_new and attempts[number] == _ATTEMPTS:
                        raise InputError(
                            f"{_ASKED_BY}: {_ATTEMPTS} workers died at the same job"
                        ) from None
                    if not is_new:
                        waiting.appendleft(number)
                    continue
                except ray.exceptions.RayTaskError as error:
                    self._drain(at_work)
                    raise error.cause from None
                self._idle.append(actor)
                if not is_new:
                    results[number] = pickle.loads(found)
                    if each is not None:
                        each(number, results[number])
            if at_work or self._idle:
                begin_s = time.monotonic()
                continue
            if time.monotonic() > begin_s + _ROOM_S:
                raise InputError(f"{_ASKED_BY}: the Ray cluster had no CPU for {_ROOM_S:g} s")
            if time.monotonic() > begin_s + _TOLD_S and not is_told:
                is_told = True
                logging.getLogger(__name__).warning("waiting for a CPU of the Ray cluster")
        return results

    def _replace(self, actor: Any, error: Exception, was_new: bool) -> None:
        """One is lost; what cannot even be made is not made again."""
        self._actors.discard(actor)
        if was_new and "creation task" in str(error):
            cause = getattr(error, "cause", None) or error
            line = str(cause).strip().splitlines()[-1]
            raise InputError(f"{_ASKED_BY}: a worker cannot be made: {line}") from None
        self._begin()

    def _drain(self, at_work: dict[Any, tuple[Any, int]]) -> None:
        """Others that are at work are idle later."""
        for asked, (actor, _) in at_work.items():
            self._coming[asked] = actor

    def close(self) -> None:
        """End them."""
        for actor in self._actors:
            with suppress(Exception):
                self._ray.kill(actor)
