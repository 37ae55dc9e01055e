"""How long each part of a call took, and how long the rest may take."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Measures the seconds of the parts of a call, which may have a time limit.

    Args:
        limit_s: of the call, seconds; None: no limit.

    Attributes:
        limit_s: of the call, seconds; None: no limit.
        seconds: by name of the phase, in order.
        cut_short: parts that were left out because of the limit, in words.
    """

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.seconds: dict[str, float] = {}
        self.cut_short: list[str] = []
        self._until_s = math.inf if limit_s is None else time.perf_counter() + limit_s

    @contextmanager
    def timed(self, name: str, *, counts: bool = True) -> Iterator[None]:
        """Time a phase.

        Args:
            name: of the phase.
            counts: whether its seconds count against the limit of the call.
        """
        begin_s = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin_s
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        if not counts:
            self._until_s += seconds

    def until_s(self, share: float, least: float) -> float:
        """Return when a share of the remaining time is over (time.perf_counter); inf without limit.

        Args:
            share: of the time that is left.
            least: share of the whole limit that is granted in any case.
        """
        if self.limit_s is None:
            return math.inf
        now_s = time.perf_counter()
        return now_s + max(share * (self._until_s - now_s), least * self.limit_s)

    def left_s(self, least: float) -> float | None:
        """Return the remaining seconds of the limit; None without a limit.

        Args:
            least: share of the whole limit that is granted in any case.
        """
        if self.limit_s is None:
            return None
        return max(self._until_s - time.perf_counter(), least * self.limit_s)
