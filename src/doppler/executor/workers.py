"""Host threads that execute tasks; any free thread may serve any device or channel.

A thread that finishes a task decides under one lock what starts next, continues with one of these
tasks itself, and wakes a sleeping thread for each of the others. So one thread runs a chain of
tasks over several devices without handing over, and nobody polls. Each device and each channel has
at most one task at a time, so at most as many threads work as there are resources, each on one
core.

Where cores make the copies, the thread that computed a region also copies it before its next op: a
thread for the copy would take a core from another op anyway, and would have to be woken first. On 2
cores and 2 devices that is 2 to 7% faster if ops take 100 microseconds or more, 25% faster if they
are short (median over random placements), and measurements vary less. Within one process devices
make their transfers as tasks of their own in any case (`tasks.Unroller`).
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.recording import Action
from doppler.executor.tasks import NOWHERE, Tasks

# How long to wait for a thread that hangs when its session is closed.
PATIENCE_S = 1.0


class TaskError(Exception):
    """A task raised an error, which is the cause of this one."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self.task = task


class TaskTimeoutError(Exception):
    """A task runs longer than allowed; its thread is lost."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self.task = task


class Workers:
    """The threads of a session; they are reused from one execution to the next."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self.is_lost = False  # a task did not end, so its thread cannot be reused

    def run(
        self,
        tasks: Tasks,
        actions: Sequence[Action],
        *,
        fifo: bool,
        sender_copies: bool,
        timeout_s: float,
    ) -> tuple[Dispatcher, float]:
        """Execute all tasks.

        If tasks wait for each other in a circle, the execution ends early and some times are NaN.

        Args:
            tasks: to execute.
            actions: for each op and transfer.
            fifo: ready tasks run in order of arrival instead of priority.
            sender_copies: the thread that computed a region also copies it, before anything else.
            timeout_s: limit for one task.

        Returns:
            The dispatcher with the times of tasks, and the time of the start, on time.perf_counter.

        Raises:
            TaskError: a task raised; all others that ran have ended.
            TaskTimeoutError: a task runs for longer than ``timeout_s``.
        """
        run = self.prepare(tasks, actions, fifo=fifo, sender_copies=sender_copies)
        return run.dispatcher, self.carry_out(run, timeout_s)

    def prepare(
        self,
        tasks: Tasks,
        actions: Sequence[Action],
        *,
        fifo: bool,
        sender_copies: bool,
        num_arrivals: int = 0,
    ) -> "TaskRun":
        """Make an execution that has not begun.

        Args:
            tasks: as in `run`.
            actions: as in `run`.
            fifo: as in `run`.
            sender_copies: as in `run`.
            num_arrivals: number of tasks whose end is reported by `TaskRun.arrive`.
        """
        assert not self.is_lost, "a thread hangs"
        for _ in range(len(self._workers), len(set(tasks.resource) - {NOWHERE})):
            self._workers.append(_Worker())
        dispatcher, idle = Dispatcher(tasks, fifo=fifo), self._workers.copy()
        return TaskRun(tasks, actions, dispatcher, idle, sender_copies, num_arrivals)

    def carry_out(self, run: "TaskRun", timeout_s: float, at_s: float | None = None) -> float:
        """Begin an execution and wait for its end; raises as `run`.

        Args:
            run: the execution.
            timeout_s: limit for one task.
            at_s: when it begins, on time.perf_counter; None: now.

        Returns:
            When it began.
        """
        begin_s = run.begin(at_s)
        try:
            run.wait(timeout_s)
        except BaseException:
            run.abandon()
            self.is_lost = True
            raise
        if run.failed is not None:
            task, error = run.failed
            raise TaskError(task) from error
        return begin_s

    def close(self) -> None:
        """End the threads; a thread that hangs is left behind and ends with the process.

        Python aborts if such a thread returns during shutdown, so it gets a moment to end.
        """
        for worker in self._workers:
            worker.give(None)
        given_up_at_s = time.monotonic() + PATIENCE_S
        for worker in self._workers:
            patience_s = max(0.0, given_up_at_s - time.monotonic()) if self.is_lost else None
            worker.thread.join(patience_s)
        self._workers.clear()


class _Worker:
    """A thread that sleeps until it gets a task."""

    def __init__(self) -> None:
        self._todo: tuple[TaskRun, int] | None = None
        self._wake = threading.Lock()  # free only while a given task has not been taken
        self._wake.acquire()
        self.thread = threading.Thread(target=self._serve, name="executor", daemon=True)
        self.thread.start()

    def give(self, todo: "tuple[TaskRun, int] | None") -> None:
        """Give the thread an execution and its first task; None ends the thread."""
        self._todo = todo
        self._wake.release()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            while True:
                self._wake.acquire()
                if self._todo is None:
                    return
                run, task = self._todo
                self._todo = None
                run.work(self, task)
                del run


class TaskRun:
    """One execution of some tasks by some threads.

    Attributes:
        failed: the task that raised, and its error; the task is NOWHERE if the execution was
            abandoned.
    """

    def __init__(
        self,
        tasks: Tasks,
        actions: Sequence[Action],
        dispatcher: Dispatcher,
        idle: list[_Worker],
        sender_copies: bool,
        num_arrivals: int,
    ) -> None:
        self.dispatcher = dispatcher
        self.failed: tuple[int, BaseException] | None = None
        self._actions, self._idle = actions, idle
        # From this task on, a thread keeps all tasks that it has started.
        self._first_kept = tasks.num_ops if sender_copies else len(tasks.resource)
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._num_running = 0  # has been given to a thread
        self._num_arrivals = num_arrivals  # still to come
        self._early: list[int] | None = []  # arrivals before the execution began
        self._is_over = False
        self._running: dict[_Worker, int] = {}  # the task that each thread runs

    def begin(self, at_s: float | None = None) -> float:
        """Start all ready tasks, at ``at_s`` if given; return the time."""
        while at_s is not None and (left_s := at_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        with self._lock:
            now = time.perf_counter() if at_s is None else at_s
            started = [] if self.failed is not None else self.dispatcher.start(now)
            self._num_running = len(started)
            early, self._early = self._early, None
            self._end_if_over()
        self._hand_over(started)
        for task in early or ():
            self.arrive(task)
        return now

    def arrive(self, task: int) -> None:
        """Record that a task which runs elsewhere has ended; tasks that wait for it may start."""
        with self._lock:
            if self.failed is not None:
                return
            if self._early is not None:
                self._early.append(task)
                return
            now = time.perf_counter()
            self.dispatcher.retire(task, now)
            started = self.dispatcher.start(now)
            self._num_running += len(started)
            self._num_arrivals -= 1
            self._end_if_over()
        self._hand_over(started)

    def _end_if_over(self) -> None:
        """Wake the thread that waits for the end, once; the caller holds the lock."""
        nothing_comes = self._num_arrivals == 0 or self.failed is not None
        if self._num_running == 0 and nothing_comes and not self._is_over:
            self._is_over = True
            self._done.release()

    def _hand_over(self, tasks: list[int]) -> None:
        for task in tasks:
            self._idle.pop().give((self, task))

    def work(self, worker: _Worker, task: int) -> None:
        """Run a task and then its followers on the calling thread, until none is left for it."""
        actions, running, first_kept = self._actions, self._running, self._first_kept
        copies: deque[int] = deque()
        own: int | None = task
        while copies or own is not None:
            if copies:
                task = copies.popleft()
            elif own is not None:
                task, own = own, None
            running[worker] = task
            error = None
            try:
                actions[task]()
            except BaseException as raised:
                error = raised
            num_waiting = len(copies) + (own is not None)
            started = self._finish(worker, task, error, num_waiting)
            if started is None:
                return
            others = []
            for other in started:
                if other >= first_kept:
                    copies.append(other)
                elif own is None:
                    own = other
                else:
                    others.append(other)
            if others:
                self._hand_over(others)

    def _finish(
        self, worker: _Worker, task: int, error: BaseException | None, num_waiting: int
    ) -> list[int] | None:
        """Record the end of a task; return the tasks to start now, None if the thread is to stop.

        Args:
            worker: that ran the task.
            task: that has ended.
            error: that it raised, if any.
            num_waiting: tasks that the thread still has.
        """
        with self._lock:
            now = time.perf_counter()
            self.dispatcher.retire(task, now)
            if error is not None and self.failed is None:
                self.failed = task, error
            if self.failed is not None:
                started, self._num_running = None, self._num_running - num_waiting
            else:
                started = self.dispatcher.start(now)
                self._num_running += len(started)
            self._num_running -= 1
            if started is None or not (started or num_waiting):
                self._idle.append(worker)
                del self._running[worker]
                self._end_if_over()
        return started

    def abandon(self) -> None:
        """Start no more tasks."""
        with self._lock:
            self.failed = self.failed or (NOWHERE, RuntimeError("abandoned"))
            self._end_if_over()

    def wait(self, timeout_s: float) -> None:
        """Wait until no task runs any more.

        Args:
            timeout_s: limit for one task.

        Raises:
            TaskTimeoutError: a task has run for ``timeout_s``.
        """
        patience_s = timeout_s
        while not self._done.acquire(timeout=patience_s):
            with self._lock:
                start_s, now = self.dispatcher.start_s, time.perf_counter()
                task = min(self._running.values(), key=start_s.__getitem__, default=None)
            patience_s = timeout_s
            if task is not None:
                patience_s += start_s[task] - now
                if patience_s <= 0:
                    raise TaskTimeoutError(task)
