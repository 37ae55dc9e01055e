"""Signals: exit codes, the line that is told, and an end in time whatever runs."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from doppler.support.stopping import Stopped, deferred, going_on, stoppable

SRC = Path(__file__).resolve().parents[2] / "src"


def stopped(number: int, body: str, *, twice: bool = False) -> subprocess.CompletedProcess:
    """A process that runs ``body``, and gets a signal when it has printed a line."""
    script = textwrap.dedent("""
        import hashlib, subprocess, sys, time
        from doppler.support.stopping import Stopped, deferred, ending_children, going_on, stoppable
        try:
            with stoppable():
                BODY
        except Stopped as stopped:
            print(stopped.line, file=sys.stderr, flush=True)
            sys.exit(stopped.exit_code)
    """).replace("BODY", textwrap.indent(textwrap.dedent(body), " " * 8).strip())
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(number)
    if twice:
        first += process.stdout.readline()
        process.send_signal(number)
    out, error = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, first + out, error)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((signal.SIGTERM, 143), (signal.SIGINT, 130)),
        *((signal.SIGHUP, 129), (signal.SIGUSR1, 138)),
    ],
)
def test_a_signal_ends_a_command_with_its_code_and_closes_what_is_open(number, code):
    done = stopped(
        number,
        """
        with going_on(lambda inner: "the same command goes on"):
            try:
                print("begun", flush=True)
                time.sleep(50)
            finally:
                print("closed", flush=True)
        """,
    )
    name = signal.Signals(number).name
    assert (done.returncode, done.stdout) == (code, "begun\nclosed\n")
    assert done.stderr == f"stopped by {name}; the same command goes on\n"


def test_what_fails_because_it_is_interrupted_is_no_error_of_its_own():
    done = stopped(
        signal.SIGTERM,
        """
        with stoppable():
            try:
                print("begun", flush=True)
                time.sleep(50)
            finally:
                raise RuntimeError("half compiled")
        """,
    )
    assert (done.returncode, done.stderr) == (143, "stopped by SIGTERM\n")


def test_code_that_does_not_return_to_python_is_ended():
    done = stopped(
        signal.SIGINT,
        """
        print("begun", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        """,
    )
    assert done.returncode == 130
    assert done.stderr == "stopped by SIGINT\n"


def test_what_is_deferred_ends_its_part_first():
    done = stopped(
        signal.SIGTERM,
        """
        with deferred() as is_stopped:
            print("begun", flush=True)
            while not is_stopped():
                time.sleep(0.01)
            print("kept", flush=True)
        print("not reached")
        """,
    )
    assert (done.returncode, done.stdout) == (143, "begun\nkept\n")


def test_a_second_signal_ends_at_once():
    done = stopped(
        signal.SIGTERM,
        """
        from doppler.support import stopping
        stopping.PATIENCE_S = dict.fromkeys(stopping.PATIENCE_S, 1000.0)
        try:
            print("begun", flush=True)
            time.sleep(50)
        finally:
            print("closing", flush=True)
            while True:
                time.sleep(1)
        """,
        twice=True,
    )
    assert (done.returncode, done.stdout) == (143, "begun\nclosing\n")
    assert done.stderr == "stopped by SIGTERM\n"


def test_children_end_with_their_parent(tmp_path):
    done = stopped(
        signal.SIGTERM,
        """
        with ending_children():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            print(child.pid, flush=True)
            child.wait()
        """,
    )
    assert done.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_handlers_are_those_of_before_when_nothing_has_come():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stoppable(), stoppable(), going_on(str), deferred() as is_stopped:
        assert not is_stopped()
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_passes_what_handles_errors():
    with pytest.raises(Stopped, match="goes on"), stoppable(), going_on(lambda inner: "goes on"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            raise AssertionError("it is no error") from None


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_something_else_handles_is_left_to_it(number):
    """``nohup`` ignores SIGHUP, a scheduler's own launcher may handle SIGUSR1."""
    heard = []
    for handler in (signal.SIG_IGN, lambda *_: heard.append(number)):
        before = signal.signal(number, handler)
        try:
            with stoppable():
                os.kill(os.getpid(), number)
                assert signal.getsignal(number) is handler
        finally:
            signal.signal(number, before)
    assert heard == [number]
