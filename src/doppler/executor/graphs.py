"""CUDA graphs of runs that are issued ahead: a placement is captured once, then replayed whole.

A replay costs the host one call instead of some for each task, and no GPU waits until all is
issued. Every placement is captured before it is first executed, so that what is measured of one
compares with what is measured of another, however often either is executed; only the first run of a
session is issued, as it loads what may not be loaded during a capture. When tasks start and finish
is told by events that are nodes of the graph (`external`).

Of one GPU alone: torch captures the streams of one. Runs of several, and of kernels that cannot be
captured, are issued as in issuing.py.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from doppler.executor.gpus import StreamAction
from doppler.executor.issuing import POLL_S, Mark, Times, issue, issue_all, issue_order, streams_of
from doppler.executor.tasks import Tasks
from doppler.executor.workers import TaskError, TaskTimeoutError

# A round of what stage III compares is of fewer placements.
MOST_GRAPHS = 16


class CaptureError(Exception):
    """A run that cannot be captured, or not be timed, as a graph; why, in one line."""


class Captured:
    """A run as a graph, which can be replayed.

    shares: another one, whose memory it uses: one at a time is replayed, and leaves nothing there.

    Raises:
        CaptureError: a kernel cannot be captured, or torch captures nothing here.
    """

    def __init__(
        self, tasks: Tasks, actions: Sequence[StreamAction], shares: "Captured | None"
    ) -> None:
        self._order = issue_order(tasks)
        self._stream, *others = streams_of(actions)
        torch.cuda.synchronize(self._stream.device)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            try:
                self._graph = torch.cuda.CUDAGraph()
                pool = None if shares is None else shares._graph.pool()
                # Other threads do what they like meanwhile.
                self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            except RuntimeError as error:
                raise CaptureError(_line(error)) from None
            try:
                self._begin = _marked(self._stream)
                for stream in others:
                    stream.wait_event(self._begin.done)
                self._issued = issue(tasks, actions, self._order, _marked)
                for stream in others:  # all streams end where they began
                    ended = torch.cuda.Event(enable_timing=False)
                    ended.record(stream)
                    self._stream.wait_event(ended)
                self._graph.capture_end()
            except (RuntimeError, TaskError) as error:
                with suppress(RuntimeError):  # if it has not ended
                    self._graph.capture_end()
                raise CaptureError(_line(error.__cause__ or error)) from None

    def replay(self, timeout_s: float) -> Times:
        """Execute it once more, and wait for its end.

        timeout_s: for one task, after those before it.

        Raises:
            CaptureError: its events tell no time.
            TaskError: the GPU reports an error; the task that it has come to.
            TaskTimeoutError: a task runs for longer than ``timeout_s``.
        """
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._graph.replay()
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
        """The first task, in the order of issue, of whose end this replay has not told."""
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
    """Events in a graph: one of them another stream can wait for, the other tells the time.

    The mark must outlive the capture: the other event is a node of the graph, and to capture one
    that is gone ends the process with a segmentation fault.
    """
    told = torch.cuda.Event(enable_timing=True, external=True)
    told.record(stream)
    done = torch.cuda.Event(enable_timing=False)
    done.record(stream)
    return Mark(done, told)


class Graphs:
    """Runs of a session that are issued ahead: as graphs if it captures, and where that can be."""

    def __init__(self, *, captures: bool) -> None:
        self._kept: OrderedDict[bytes, Captured] = OrderedDict()
        self._is_loaded, self._is_off = False, not captures

    def run(
        self, known_as: bytes, tasks: Tasks, actions: Sequence[StreamAction], timeout_s: float
    ) -> Times:
        """See issuing.issue_all.

        known_as: of a placement; equal ones have equal tasks.
        """
        if self._is_loaded and not self._is_off and _can_be_captured(tasks, actions):
            try:
                return self._of(known_as, tasks, actions).replay(timeout_s)
            except CaptureError as error:
                self._is_off = True
                self._kept.clear()
                logging.getLogger(__name__).warning(
                    "no CUDA graph of this run (%s): tasks are issued one by one", error
                )
        times = issue_all(tasks, actions, timeout_s)
        self._is_loaded |= not math.isnan(max(times.finish_s, default=math.nan))
        return times

    def _of(self, known_as: bytes, tasks: Tasks, actions: Sequence[StreamAction]) -> Captured:
        if known_as in self._kept:
            self._kept.move_to_end(known_as)
        else:
            last = next(reversed(self._kept.values()), None)
            self._kept[known_as] = Captured(tasks, actions, last)
            if len(self._kept) > MOST_GRAPHS:
                self._kept.popitem(last=False)
        return self._kept[known_as]


def _can_be_captured(tasks: Tasks, actions: Sequence[StreamAction]) -> bool:
    """All on one GPU, and no tasks that wait for each other in a circle."""
    return len({stream.device for stream in streams_of(actions)}) == 1 and not (
        tasks.wait_for_themselves()
    )


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
