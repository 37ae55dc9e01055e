"""Host threads that execute tasks: devices and channels are roles, threads are whoever is free.

Who finishes a task decides, under one lock, what starts next, goes on with one of these tasks
itself, and wakes a sleeping thread for each of the others. So a chain of tasks, over however many
devices, is run by one thread without handing over; nobody polls. As each device and each channel
has at most one task at a time, there are at most as many threads at work as resources, each on one
core.

Where copies are made by cores, who has made a region also copies it, before its own next op: a
thread for the copy would take a core from another op all the same, and had to be woken first. On 2
cores and 2 devices that is 2 to 7% faster where ops take 100 microseconds and more, and a quarter
where they are short (median over random placements), and what is measured varies less. Within one
process devices make their transfers as tasks of their own anyway (`tasks.Unroller`).
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.recording import Action
from doppler.executor.tasks import NOWHERE, Tasks

# For threads that hang, when the session that they belong to is closed.
PATIENCE_S = 1.0


class TaskError(Exception):
    """A task that raised; the cause is its error."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self.task = task


class TaskTimeoutError(Exception):
    """A task that runs longer than it may; its thread is lost."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self.task = task


class Workers:
    """The threads of a session; they last from one run to the next."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self.is_lost = False  # a task did not end: no thread can be waited for any more

    def run(
        self,
        tasks: Tasks,
        actions: Sequence[Action],
        *,
        fifo: bool,
        sender_copies: bool,
        timeout_s: float,
    ) -> tuple[Dispatcher, float]:
        """Execute all tasks; returns their times, on time.perf_counter, and when they began.

        actions: what to do for each op and transfer. A run whose tasks wait for each other in a
        circle ends early, some of its times NaN. sender_copies: the thread that has made a region
        also copies it, before anything else.

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
        """A run that has not begun; see `run`.

        num_arrivals: how many of the tasks end when `TaskRun.arrive` is told of them.
        """
        assert not self.is_lost, "a thread hangs"
        for _ in range(len(self._workers), len(set(tasks.resource) - {NOWHERE})):
            self._workers.append(_Worker())
        dispatcher, idle = Dispatcher(tasks, fifo=fifo), self._workers.copy()
        return TaskRun(tasks, actions, dispatcher, idle, sender_copies, num_arrivals)

    def carry_out(self, run: "TaskRun", timeout_s: float, at_s: float | None = None) -> float:
        """Let a run begin, and wait for its end; returns when it began. Raises as `run`.

        at_s: when it begins, on time.perf_counter; now unless given.
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
        """End the threads; one that hangs is left behind and does not outlive the process.

        Python aborts when such a thread comes back while it is shutting down: that gets a moment.
        """
        for worker in self._workers:
            worker.give(None)
        given_up_at_s = time.monotonic() + PATIENCE_S
        for worker in self._workers:
            patience_s = max(0.0, given_up_at_s - time.monotonic()) if self.is_lost else None
            worker.thread.join(patience_s)
        self._workers.clear()


class _Worker:
    """A thread that sleeps until it is given something to do."""

    def __init__(self) -> None:
        self._todo: tuple[TaskRun, int] | None = None
        self._wake = threading.Lock()  # free only from a gift to its acceptance
        self._wake.acquire()
        self.thread = threading.Thread(target=self._serve, name="executor", daemon=True)
        self.thread.start()

    def give(self, todo: "tuple[TaskRun, int] | None") -> None:
        """A run and its task to begin with; None ends the thread."""
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
    """One run of some tasks by some threads.

    failed: a task that raised, and what; NOWHERE if all was given up.
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
        # From which task on a thread keeps all that it has started.
        self._first_kept = tasks.num_ops if sender_copies else len(tasks.resource)
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._num_running = 0  # has been given to a thread
        self._num_arrivals = num_arrivals  # still to come
        self._early: list[int] | None = []  # those that came before the beginning
        self._is_over = False
        self._running: dict[_Worker, int] = {}  # what each of them is at

    def begin(self, at_s: float | None = None) -> float:
        """Start what can start, when it is time; returns the time."""
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
        """A task has ended that runs elsewhere; what waits for it may start."""
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
        """Wake who waits for the end, once; the caller holds the lock."""
        nothing_comes = self._num_arrivals == 0 or self.failed is not None
        if self._num_running == 0 and nothing_comes and not self._is_over:
            self._is_over = True
            self._done.release()

    def _hand_over(self, tasks: list[int]) -> None:
        for task in tasks:
            self._idle.pop().give((self, task))

    def work(self, worker: _Worker, task: int) -> None:
        """Run a task, and what it leads to, on the calling thread, until nothing is left for it."""
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
        """Note that a task has ended; returns what starts now, None if the thread is to stop.

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
        """Start nothing any more."""
        with self._lock:
            self.failed = self.failed or (NOWHERE, RuntimeError("abandoned"))
            self._end_if_over()

    def wait(self, timeout_s: float) -> None:
        """Until no task runs any more.

        Raises:
            TaskTimeoutError: one has run for ``timeout_s``.
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
