"""Tells a person who waits for more than two seconds what is being done."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds until the first line, and from each line to the next.
FIRST_S, NEXT_S = 2.0, 30.0


def on_terminal(line: str) -> None:
    """Print a line to stderr if that is a terminal; the line is not part of the command's output.

    Args:
        line: to print.
    """
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Describe roughly how long something takes: ``about 40 s``, ``about 6 min``, ``about 2.5 h``.

    Args:
        seconds: that it takes.
    """
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


@contextmanager
def waiting(say: Callable[[str], object], what: str) -> Iterator[None]:
    """Say what this context does if it takes long, and now and then for how long.

    Args:
        say: prints one line; it is called in another thread.
        what: a description of the work.
    """
    ended, begin_s = threading.Event(), time.monotonic()

    def tell() -> None:
        if not ended.wait(FIRST_S):
            say(f"{what} ...")
        while not ended.wait(NEXT_S):
            say(f"{what}: {time.monotonic() - begin_s:.0f} s so far")

    teller = threading.Thread(target=tell, name="waiting", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
