"""Whoever waits for more than two seconds is told what for."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds until the first line, and from each line to the next.
FIRST_S, NEXT_S = 2.0, 30.0


def on_terminal(line: str) -> None:
    """Say it to the person who watches, if there is one: it is no output of the command."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


@contextmanager
def waiting(say: Callable[[str], object], what: str) -> Iterator[None]:
    """Say what is being done, if it takes long, and now and then how long it has taken.

    Args:
        say: takes a line; it is called in another thread.
        what: is done in this context.
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
