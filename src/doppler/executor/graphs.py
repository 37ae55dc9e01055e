"""CUDA graphs of whole executions: a placement is captured once and replayed with one call.

A replay costs the host one call instead of several per task, and no GPU waits for the host. Every
placement is captured before its first execution, so that measurements of different placements are
comparable however often each is executed. The first placement of a session is executed once more
before, task by task, because that loads code that may not be loaded during a capture. Events that
are nodes of the graph (`external`) tell when tasks start and finish.

This works on one GPU only, because torch captures the streams of one. Runs on several GPUs, and of
kernels that cannot be captured, are issued as in issuing.py.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from doppler.executor.captures import capturing
from doppler.executor.gpus import StreamAction
from doppler.executor.issuing import POLL_S, Mark, Times, issue, issue_all, issue_order, streams_of
from doppler.executor.tasks import Tasks
from doppler.executor.workers import TaskError, TaskTimeoutError

# More than the placements that calibration or stage III compare in a round. With fewer, each
# execution in a round would be the first one of a new graph.
MOST_GRAPHS = 96
# Of all graphs together: a kernel in a graph takes some 10 KB of the GPU's memory. If there is none
# left, no more graphs can be made.
MOST_TASKS = 100_000


class CaptureError(Exception):
    """An execution cannot be captured or timed as a graph; the message says why in one line."""


class Captured:
    """An execution as a CUDA graph that can be replayed.

    Args:
        tasks: to execute.
        actions: for each op and transfer.
        shares: another graph whose memory is reused. Graphs are replayed one at a time and leave no
            data in it.

    Raises:
        CaptureError: a kernel cannot be captured, or torch cannot capture on this machine.
    """

    def __init__(
        self, tasks: Tasks, actions: Sequence[StreamAction], shares: "Captured | None"
    ) -> None:
        self._order = issue_order(tasks)
        self._stream, *others = streams_of(actions)
        torch.cuda.synchronize(self._stream.device)
        try:
            with capturing(self._stream, None if shares is None else shares._graph) as self._graph:
                self._begin = _marked(self._stream)
                for stream in others:
                    stream.wait_event(self._begin.done)
                self._issued = issue(tasks, actions, self._order, _marked)
                for stream in others:  # all streams join the first one again
                    ended = torch.cuda.Event(enable_timing=False)
                    ended.record(stream)
                    self._stream.wait_event(ended)
        except (RuntimeError, TaskError) as error:
            raise CaptureError(_line(error.__cause__ or error)) from None

    @property
    def num_tasks(self) -> int:
        """How many tasks the graph executes."""
        return len(self._order)

    def replay(self, timeout_s: float) -> Times:
        """Execute the graph and wait for its end.

        Args:
            timeout_s: limit for one task, from the end of the tasks before it.

        Raises:
            CaptureError: the graph cannot be started, or its events give no times.
            TaskError: the GPU reports an error; names the task that was reached.
            TaskTimeoutError: a task runs for longer than ``timeout_s``.
        """
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            try:
                self._graph.replay()
            except RuntimeError as error:  # such as no memory for it
                raise CaptureError(_line(error)) from None
        done = torch.cuda.Event(enable_timing=False)
        done.record(self._stream)
        since_s, at = time.monotonic(), -1
        try:
            while not done.query():
                if time.monotonic() - since_s > timeout_s:
                    if at == (now_at := self._come_to()):
                        raise TaskTimeoutError(at)
                    since_s, at = time.monotonic(), now_at
                time.sleep(POLL_S)
        except RuntimeError as error:
            raise TaskError(self._come_to()) from error
        return self._times()

    def _come_to(self) -> int:
        """The first task, in the order of issue, whose end this replay has not reported."""
        for task in self._order:
            try:
                if self._begin.time.elapsed_time(self._issued[task][1].time) < 0:
                    return task  # it was in another replay
            except RuntimeError:
                return task
        return self._order[-1]

    def _times(self) -> Times:
        times = Times(*([math.nan] * len(self._order) for _ in range(2)))
        try:
            for task, (begin, end) in self._issued.items():
                times.start_s[task] = self._begin.time.elapsed_time(begin.time) / 1e3
                times.finish_s[task] = self._begin.time.elapsed_time(end.time) / 1e3
        except RuntimeError as error:
            raise CaptureError(_line(error)) from None
        if not all(0 <= start <= end for start, end in zip(*times, strict=True)):
            raise CaptureError("its events tell of no order")
        return times


def _marked(stream: Any) -> Mark:
    """Two events in a graph: one for other streams to wait for, one that records the time.

    The mark must outlive the capture: the second event is a node of the graph, and capturing an
    event that was deleted crashes the process.
    """
    told = torch.cuda.Event(enable_timing=True, external=True)
    told.record(stream)
    done = torch.cuda.Event(enable_timing=False)
    done.record(stream)
    return Mark(done, told)


class Graphs:
    """Executions of a session that are issued ahead, as CUDA graphs where that is possible."""

    def __init__(self, *, captures: bool) -> None:
        self._kept: OrderedDict[bytes, Captured] = OrderedDict()
        self._loaded: set[Any] = set()  # GPUs
        self._is_off, self._has_replayed = not captures, False

    def run(
        self, known_as: bytes, tasks: Tasks, actions: Sequence[StreamAction], timeout_s: float
    ) -> Times:
        """Execute tasks as `issuing.issue_all` does, by replaying a graph if possible.

        Args:
            known_as: key of the placement; equal keys have equal tasks.
            tasks: to execute.
            actions: for each op and transfer.
            timeout_s: limit for one task.
        """
        if self._is_off or not _can_be_captured(tasks, actions):
            return issue_all(tasks, actions, timeout_s)
        gpu = streams_of(actions)[0].device
        if gpu not in self._loaded:
            issue_all(tasks, actions, timeout_s)
            self._loaded.add(gpu)
        try:
            times = self._of(known_as, tasks, actions).replay(timeout_s)
        except CaptureError as error:
            self._is_off = True
            self._kept.clear()
            logging.getLogger(__name__).warning(
                "no CUDA graph of this run (%s): tasks are issued one by one%s",
                error,
                "; do not compare what follows with earlier executions, which were graphs"
                if self._has_replayed
                else "",
            )
        else:
            self._has_replayed = True
            return times
        return issue_all(tasks, actions, timeout_s)

    def free(self) -> None:
        """Give the graphs back."""
        self._kept.clear()

    def _of(self, known_as: bytes, tasks: Tasks, actions: Sequence[StreamAction]) -> Captured:
        if known_as in self._kept:
            self._kept.move_to_end(known_as)
        else:
            last = next(reversed(self._kept.values()), None)
            self._kept[known_as] = Captured(tasks, actions, last)
            while len(self._kept) > 1 and self._are_too_many():
                self._kept.popitem(last=False)
        return self._kept[known_as]

    def _are_too_many(self) -> bool:
        num_tasks = sum(one.num_tasks for one in self._kept.values())
        return len(self._kept) > MOST_GRAPHS or num_tasks > MOST_TASKS


def _can_be_captured(tasks: Tasks, actions: Sequence[StreamAction]) -> bool:
    """Whether all tasks are on one GPU and none wait for each other in a circle."""
    return len({stream.device for stream in streams_of(actions)}) == 1 and not (
        tasks.wait_for_themselves()
    )


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
