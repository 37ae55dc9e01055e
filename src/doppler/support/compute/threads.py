"""How many threads batches of this process may use."""

import os

_most: list[int] = []


def num_threads() -> int:
    """All cores that this process may run on, unless it was told less."""
    return _most[-1] if _most else len(os.sched_getaffinity(0))


def limit_threads(num: int) -> None:
    """From now on so many."""
    _most.append(num)
