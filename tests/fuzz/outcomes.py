"""What may come of any input: it is done, or it is refused by an InputError, within 20 seconds."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from fuzz.mutations import Damaged
from hypothesis import HealthCheck, settings

from doppler.support.errors import InputError

LIMIT_S = 20
# Few cases of each property in `make test`, as many as it says in `make fuzz`. Folders are one for
# all cases of a test, which write them anew.
CASES = int(os.environ.get("FUZZ_CASES", "15"))
FUZZ = settings(
    max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
cases: Counter[str] = Counter()
Result = TypeVar("Result")


class HangError(Exception):
    """It took too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise a HangError in what runs for longer than the limit."""

    def stop(*_: object) -> None:
        raise HangError(f"no end after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(kind: str, action: Callable[[], Result], *, wrong: str | None = None) -> Result | None:
    """What an action returns, None where it refuses its input; anything else is an error.

    Args:
        kind: what is counted.
        wrong: why the input must be refused; None if it may be right.
    """
    cases[kind] += 1
    with limited():
        try:
            result = action()
        except InputError as error:
            said = str(error)
            assert said.strip(), "it says nothing"
            assert "\n" not in said, f"more than a line: {said!r}"
            return None
    assert wrong is None, f"accepted: {wrong}"
    return result


def read(kind: str, reader, path: Path, case: Damaged | bytes):
    """Write a file, and read it."""
    if isinstance(case, bytes):
        path.write_bytes(case)
        return outcome(kind, lambda: reader(path))
    path.write_text(case.text, encoding="utf-8", errors="surrogatepass")
    return outcome(kind, lambda: reader(path), wrong=case.wrong)


def check_given(graph) -> None:
    """Times that are read are finite and not negative."""
    if graph is not None and graph.given_costs is not None:
        for seconds_N in (graph.given_costs.op_seconds, graph.given_costs.transfer_seconds):
            assert seconds_N is None or (np.isfinite(seconds_N) & (seconds_N >= 0)).all()


def said_in_one_line(kind: str, code: int, stderr: str) -> None:
    """A command ended well, or with exit code 1 and a line that says why."""
    cases[kind] += 1
    assert "Traceback" not in stderr, stderr
    assert code in (0, 1), f"exit code {code}: {stderr}"
    if code:
        assert "error: " in stderr, stderr
