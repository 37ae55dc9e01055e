"""Issues a whole execution to the streams of GPUs at once; the streams wait for each other.

Each device computes on one stream and each channel copies on one, in the order of issue. If a task
waits for a task of another stream, its stream waits for an event. So no Python runs while the GPUs
work, and a task costs no round trip to the host, which suits kernels that are shorter than that.
Tasks that start as soon as they are ready, in whichever order, are executed by workers.py.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import torch

from doppler.executor.gpus import StreamAction
from doppler.executor.tasks import Tasks
from doppler.executor.workers import TaskError, TaskTimeoutError

# GPUs wait until all is issued, about 30 microseconds a task at two cycles a nanosecond. If that is
# too short, the execution is slower than necessary but correct.
HELD_CYCLES = 60_000
POLL_S = 2e-4


class Mark(NamedTuple):
    """A point in a stream.

    Attributes:
        done: an event that other streams can wait for.
        time: an event that records when the point was reached.
    """

    done: Any
    time: Any


class Times(NamedTuple):
    """When the tasks of an execution started and finished [K]; NaN if never.

    Attributes:
        start_s: seconds from the start of the execution.
        finish_s: likewise.
    """

    start_s: list[float]
    finish_s: list[float]


def issue_order(tasks: Tasks) -> list[int]:
    """Order ops by their keys, each transfer right after the op that makes its data.

    So a device runs its ops in their strict order, and a channel moves regions in the order in
    which they are made. Tasks that wait for each other in a circle, and tasks that depend on them,
    are left out.

    Args:
        tasks: to order.
    """
    waits = tasks.num_waits.copy()

    def place(task: int) -> tuple[bool, float, int]:
        return task < tasks.num_ops, tasks.key[task], task

    ready = [place(task) for task, num in enumerate(waits) if num == 0]
    heapify(ready)
    order = []
    while ready:
        task = heappop(ready)[2]
        order.append(task)
        for other in tasks.successors[task]:
            waits[other] -= 1
            if waits[other] == 0:
                heappush(ready, place(other))
    return order


def issue_all(tasks: Tasks, actions: Sequence[Any], timeout_s: float) -> Times:
    """Issue all tasks in their order and wait for them.

    If tasks wait for each other in a circle, nothing is issued.

    Args:
        tasks: to execute.
        actions: a StreamAction for each op and transfer.
        timeout_s: limit for one task, from the end of the tasks issued before it.

    Raises:
        TaskError: a task cannot be issued, or its GPU reports an error; nothing else runs then.
        TaskTimeoutError: a task runs for longer than ``timeout_s``.
    """
    times = Times(*([float("nan")] * len(tasks.resource) for _ in range(2)))
    order = issue_order(tasks)
    if len(order) < len(tasks.resource):
        return times
    with torch.inference_mode():
        base_of = _hold(actions, HELD_CYCLES * len(order))
        try:
            issued = issue(tasks, actions, order, _marked)
        except TaskError:
            for gpu in base_of:
                with suppress(RuntimeError):  # what the task has told already
                    torch.cuda.synchronize(gpu)
            raise
    _wait(order, issued, timeout_s)
    for task, (begin, end) in issued.items():
        first, last = actions[task].parts[0], actions[task].parts[-1]
        times.start_s[task] = base_of[first.streams[-1].device].elapsed_time(begin.time) / 1e3
        times.finish_s[task] = base_of[last.streams[-1].device].elapsed_time(end.time) / 1e3
    return times


def _hold(actions: Sequence[StreamAction], cycles: int) -> dict[Any, Any]:
    """Make all streams wait for some cycles; return when the wait ended, by GPU.

    Times of events on two GPUs are not comparable, so each GPU has its own event for the end of the
    wait. Times of two GPUs may therefore disagree by the time an event takes between them.
    """
    on_gpu = defaultdict(list)
    for stream in streams_of(actions):
        on_gpu[stream.device].append(stream)
    for gpu in on_gpu:
        torch.cuda.synchronize(gpu)
    base_of: dict[Any, Any] = {}
    for gpu, (first, *others) in on_gpu.items():
        if base_of:
            first.wait_event(next(iter(base_of.values())))
        else:
            _spin(first, cycles)
        base_of[gpu] = _marked(first).time
        for stream in others:
            stream.wait_event(base_of[gpu])
    return base_of


def streams_of(actions: Sequence[StreamAction]) -> list[Any]:
    """Return all streams that actions use.

    Args:
        actions: to look at.
    """
    parts = [part for action in actions for part in action.parts]
    return list(dict.fromkeys(stream for part in parts for stream in part.streams))


def _spin(stream: Any, cycles: int) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)


def _marked(stream: Any) -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return Mark(event, event)


def issue(
    tasks: Tasks,
    actions: Sequence[StreamAction],
    order: list[int],
    mark: Callable[[Any], Mark],
) -> dict[int, tuple[Mark, Mark]]:
    """Give the tasks to their streams; return the marks of their starts and ends.

    Args:
        tasks: to execute.
        actions: for each op and transfer.
        order: in which to issue the tasks.
        mark: marks the present point of a stream.

    Raises:
        TaskError: a task cannot be issued.
    """
    issued: dict[int, tuple[Mark, Mark]] = {}
    before: list[list[int]] = [[] for _ in order]
    for task, successors in enumerate(tasks.successors):
        for other in successors:
            before[other].append(task)
    last: dict[int, int] = {}  # per resource; a copy through the host uses two streams
    for task in order:
        parts, resource = actions[task].parts, tasks.resource[task]
        if resource in last:
            before[task].append(last[resource])
        stream = parts[0].streams[-1]
        for other in before[task]:
            if actions[other].parts[-1].streams[-1] != stream:
                stream.wait_event(issued[other][1].done)
        begin = end = mark(stream)
        for part in parts:
            part.streams[-1].wait_event(end.done)
            try:
                part.issue()
            except Exception as error:
                raise TaskError(task) from error
            end = mark(part.streams[-1])
        issued[task], last[resource] = (begin, end), task
    return issued


def _wait(order: list[int], issued: dict[int, tuple[Mark, Mark]], timeout_s: float) -> None:
    """Wait for all tasks in the order of issue, sleeping in between to leave the core to others."""
    for task in order:
        since_s = time.monotonic()
        try:
            while not issued[task][1].done.query():
                if time.monotonic() - since_s > timeout_s:
                    raise TaskTimeoutError(task)
                time.sleep(POLL_S)
        except RuntimeError as error:
            raise TaskError(task) from error
