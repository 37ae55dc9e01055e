"""How many threads parallel work of this process may use."""

import os

_most: list[int] = []


def num_threads() -> int:
    """Return the limit that was set, otherwise the number of cores that this process may use."""
    return _most[-1] if _most else len(os.sched_getaffinity(0))


def limit_threads(num: int) -> None:
    """Limit the number of threads from now on.

    Args:
        num: largest number of threads.
    """
    _most.append(num)
