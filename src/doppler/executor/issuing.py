"""Static issue: a whole run is given to the streams of GPUs at once, and they wait for each other.

Each device computes on one stream and each channel copies on one, in the order of issue; where a
task waits for a task of another stream, its stream waits for an event. So no Python runs while the
GPUs do, and a task costs no round trip to the host: for kernels that take less than that. Tasks
that start when they are ready, in whichever order that is, are those of workers.py.
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

# The GPUs are held until all is issued: some 30 microseconds a task, at two cycles a nanosecond.
# Where that is too short, a run is slower than it need be, and as correct.
HELD_CYCLES = 60_000
POLL_S = 2e-4


class Mark(NamedTuple):
    """What a stream has come to. done: an event to wait for; time: one that tells when it was."""

    done: Any
    time: Any


class Times(NamedTuple):
    """When the tasks of a run started and finished [K], in seconds from its start; NaN if never."""

    start_s: list[float]
    finish_s: list[float]


def issue_order(tasks: Tasks) -> list[int]:
    """Ops by their keys, each transfer right behind the op that makes what it moves.

    So a device runs its ops in their strict order, and a channel moves regions in the order in
    which they are made. Tasks that wait for each other in a circle are left out, and what waits for
    them.
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
    """Issue all tasks in their order, and wait for them.

    actions: StreamActions, for each op and transfer. timeout_s: for one task, after those that were
    issued before it. Where tasks wait for each other in a circle, nothing is issued.

    Raises:
        TaskError: a task cannot be issued, or its GPU reports an error; no other runs any more.
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
    """Let all streams wait until so many cycles have passed; returns when that was, by GPU.

    There is no time between events of two GPUs: each has one of its own for when it was let go. So
    times of two GPUs disagree by what an event takes from one to the other.
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
    """All streams that actions have something to do on."""
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
    """Give the tasks to their streams; returns the marks of their beginnings and ends.

    Raises:
        TaskError: one cannot be issued.
    """
    issued: dict[int, tuple[Mark, Mark]] = {}
    before: list[list[int]] = [[] for _ in order]
    for task, successors in enumerate(tasks.successors):
        for other in successors:
            before[other].append(task)
    last: dict[int, int] = {}  # of each resource; copies through the host leave it on two streams
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
            except BaseException as error:
                raise TaskError(task) from error
            end = mark(part.streams[-1])
        issued[task], last[resource] = (begin, end), task
    return issued


def _wait(order: list[int], issued: dict[int, tuple[Mark, Mark]], timeout_s: float) -> None:
    """Until all are done, in the order of issue; asleep in between, for the sake of other work."""
    for task in order:
        since_s = time.monotonic()
        try:
            while not issued[task][1].done.query():
                if time.monotonic() - since_s > timeout_s:
                    raise TaskTimeoutError(task)
                time.sleep(POLL_S)
        except RuntimeError as error:
            raise TaskError(task) from error
