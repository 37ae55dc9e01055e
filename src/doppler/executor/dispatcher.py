"""Decides which task starts next, for any backend that executes the tasks.

A backend reports what has finished and the current time, and is told what to start. The rules are
those of simulator/work_conserving_kernels.py; a test checks that the schedules are equal.
"""

from heapq import heappop, heappush

from doppler.executor.tasks import NOWHERE, Tasks


class Dispatcher:
    """The schedule of one execution of some tasks; it begins with the first call of `start`.

    Not thread-safe: a backend calls it under its own lock.

    Attributes:
        start_s: when each task was given to its resource, on the backend's clock; NaN before.
        finish_s: when the resource was free again, on the backend's clock; NaN before.
    """

    def __init__(self, tasks: Tasks, *, fifo: bool) -> None:
        num = len(tasks.resource)
        self._tasks, self._fifo = tasks, fifo
        self._num_waits = tasks.num_waits.copy()
        num_resources = tasks.num_devices * (tasks.num_devices + 1)
        self._is_free = [True] * num_resources
        self._queues: list[list[tuple[float, int, int]]] = [[] for _ in range(num_resources)]
        self._touched: list[int] = []
        self.start_s = [float("nan")] * num
        self.finish_s = [float("nan")] * num
        for task, num_waits in enumerate(tasks.num_waits):
            if num_waits == 0:  # ready from the start, before any time of a clock
                self._enqueue(task, 0.0)

    def retire(self, task: int, now: float) -> None:
        """Record that a task has finished: its resource is free, and waiting tasks may be ready.

        Args:
            task: that has finished.
            now: time on the backend's clock, seconds.
        """
        self.finish_s[task] = now
        resource, waits = self._tasks.resource[task], self._num_waits
        if resource != NOWHERE:
            self._is_free[resource] = True
            self._touched.append(resource)
        for other in self._tasks.successors[task]:
            waits[other] -= 1
            if waits[other] == 0:
                self._enqueue(other, now)

    def _enqueue(self, task: int, now: float) -> None:
        resource = self._tasks.resource[task]
        if resource == NOWHERE:
            self.start_s[task] = now
            self.retire(task, now)
            return
        key = self._tasks.key[task]
        if self._fifo and key >= 0.0:
            key = now
        heappush(self._queues[resource], (key, self._tasks.number[task], task))
        self._touched.append(resource)

    def start(self, now: float) -> list[int]:
        """Start the first ready task of every free resource, and return these tasks.

        Args:
            now: time on the backend's clock, seconds.
        """
        started = []
        for resource in self._touched:
            if self._is_free[resource] and self._queues[resource]:
                self._is_free[resource] = False
                task = heappop(self._queues[resource])[2]
                self.start_s[task] = now
                started.append(task)
        self._touched.clear()
        return started
