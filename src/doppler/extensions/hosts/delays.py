"""Delays or drops messages, so that tests can show what happens in a bad network."""

import heapq
import random
import threading
import time
from collections.abc import Callable, Sequence


class Delays:
    """Delivers the messages that have arrived, immediately unless told otherwise.

    Args:
        deliver: called with the numbers of the run and the task of each message.
    """

    def __init__(self, deliver: Callable[[int, int], None]) -> None:
        self._deliver = deliver
        self._delay_s, self._drops = 0.0, frozenset[int]()
        self._random = random.Random(0)
        self._late: list[tuple[float, int, int]] = []
        self._last_s: dict[int, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def set(self, delay_s: float, drops: Sequence[int]) -> None:
        """Delay every message by a random time, and drop some.

        Args:
            delay_s: longest delay, seconds.
            drops: tasks whose messages are dropped.
        """
        with self._changed:
            self._delay_s, self._drops = delay_s, frozenset(drops)
            if delay_s and self._thread is None:
                self._thread = threading.Thread(target=self._let_go, name="delays", daemon=True)
                self._thread.start()

    def put(self, run: int, task: int, channel: int) -> None:
        """Take in a message; messages of one channel are delivered in their order.

        Args:
            run: number of the run.
            task: that the message belongs to.
            channel: that it came through.
        """
        if task in self._drops:
            return
        if not self._delay_s:
            self._deliver(run, task)
            return
        with self._changed:
            at_s = time.perf_counter() + self._random.uniform(0.0, self._delay_s)
            at_s = self._last_s[channel] = max(at_s, self._last_s.get(channel, 0.0) + 1e-9)
            heapq.heappush(self._late, (at_s, run, task))
            self._changed.notify()

    def _let_go(self) -> None:
        while True:
            with self._changed:
                now = time.perf_counter()
                if not self._late or self._late[0][0] > now:
                    self._changed.wait(self._late[0][0] - now if self._late else None)
                    continue
                _, run, task = heapq.heappop(self._late)
            self._deliver(run, task)
