"""Which task starts next: the scheduling of a run, whatever executes the tasks.

A backend reports what has finished and is told what to start; it says what time it is. The rules
are those of simulator/work_conserving_kernels.py, and a test holds the schedules equal.
"""

from heapq import heappop, heappush

from doppler.executor.tasks import NOWHERE, Tasks


class Dispatcher:
    """One run of some tasks, which begins with the first call of `start`.

    Not thread-safe: a backend calls it under a lock of its own.

    start_s, finish_s: when each task was given to its resource, and when the resource was free
    again, on the backend's clock; NaN before.
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
            if num_waits == 0:  # ready from the start; no clock says less than 0
                self._enqueue(task, 0.0)

    def retire(self, task: int, now: float) -> None:
        """A task has finished: its resource is free, and what waited for it may be ready."""
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
        """Let every free resource that has a ready task start its first one; returns these."""
        started = []
        for resource in self._touched:
            if self._is_free[resource] and self._queues[resource]:
                self._is_free[resource] = False
                task = heappop(self._queues[resource])[2]
                self.start_s[task] = now
                started.append(task)
        self._touched.clear()
        return started
