"""Ends a command soon after a signal, with exit code 128 plus the signal, and says how to continue.

The signals are SIGTERM and SIGINT and, unless something else handles them, SIGHUP, which comes from
a terminal that is closed, and SIGUSR1, with which a scheduler such as SLURM announces the end of a
job. A command that ``nohup`` started ignores SIGHUP.

The main thread gets the exception `Stopped`, so that open files and sessions are closed. Python
raises it only between two bytecodes, which may take too long in compiled code, in a solver or in a
long training update; then a second thread ends the process. Nothing is lost, because every file of
a run is written such that a kill at any moment leaves it whole.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

# Largest number of seconds from a signal to the end of the process. A person who presses Ctrl-C has
# less patience than a scheduler. A second signal ends the process at once.
PATIENCE_S: dict[int, float] = {
    signal.SIGINT: 0.9,
    signal.SIGTERM: 5.0,
    signal.SIGHUP: 5.0,
    signal.SIGUSR1: 5.0,
    # Python ignores it; commands raise `Stopped` themselves if nobody reads what they print.
    signal.SIGPIPE: 5.0,
}
_ALWAYS = (signal.SIGINT, signal.SIGTERM)
# Seconds for work that must not be cut short, such as writing a checkpoint (see `unhurried`).
CLOSING_S = 15.0


class Stopped(BaseException):
    """A signal asked this process to end.

    It is not an Exception, so that code which handles errors does not catch it.

    Attributes:
        number: the signal.
        line: one line for the person who sent it.
    """

    def __init__(self, number: int, line: str) -> None:
        super().__init__(number, line)
        self.number, self.line = number, line

    @property
    def exit_code(self) -> int:
        """The exit code that shells and schedulers expect."""
        return 128 + self.number


class _Listener:
    """Handles the signals of this process.

    Attributes:
        received: the first signal that came, or None.
        stopped: the exception that was raised for it, or None.
        deferred: how many contexts of `deferred` are open.
        closing: how many contexts of `unhurried` are open.
        going_on: the functions of `going_on`, outermost first.
        ends_children: whether child processes end with this one.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.stopped: Stopped | None = None
        self.deferred = self.closing = 0
        self.going_on: list[Callable[[str], str]] = []
        self.ends_children = False
        # Python writes each signal's number to this socket, even if the main thread is in C code.
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        before = {number: signal.getsignal(number) for number in PATIENCE_S}
        self._before: dict[int, Any] = {
            number: handler
            for number, handler in before.items()
            if number in _ALWAYS or handler == signal.SIG_DFL
        }
        self._fd_before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        self.handle_signals()
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._watcher.start()

    def handle_signals(self) -> None:
        for number in self._before:
            signal.signal(number, self._handle)

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._fd_before)
        self._told.close()
        self._watcher.join()
        self._heard.close()

    def line(self, number: int) -> str:
        """Return one line: which signal came, and how the work can continue."""
        how = ""
        for tell in reversed(self.going_on):
            how = tell(how)
        return f"stopped by {signal.Signals(number).name}{how and '; '}{how}"

    def stop(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self.received is not None:
            self.stopped = self.stopped or Stopped(self.received, self.line(self.received))
            raise self.stopped

    def _handle(self, number: int, frame: object) -> None:
        if self.received is None:
            self.received = number
            if not self.deferred:
                self.stop()

    def _watch(self) -> None:
        """End the process if it does not end by itself after a signal."""
        number = self._next(None)
        begin_s = time.monotonic()
        while number:
            patience_s = CLOSING_S if self.closing else PATIENCE_S[number]
            again = self._next(0.02)
            if again is None:
                return
            if again or time.monotonic() > begin_s + patience_s:
                with suppress(OSError):
                    os.write(2, f"{self.line(number)}\n".encode())
                if self.ends_children:
                    end_children(wait_s=0.0)
                os._exit(128 + number)

    def _next(self, timeout_s: float | None) -> int | None:
        """Return the next signal that ends the process; 0 if none comes in time, None if closed."""
        while select.select([self._heard], [], [], timeout_s)[0]:
            byte = self._heard.recv(1)
            if not byte:
                return None
            if byte[0] in self._before:
                return byte[0]
        return 0


_listener: _Listener | None = None


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` in this context when a signal comes, and end the process if that hangs.

    Commands use it. Outside the main thread it does nothing, because Python delivers signals to the
    main thread only.
    """
    global _listener
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer = _listener
    listener = _listener = outer or _Listener()
    try:
        yield
    except Exception:  # an interrupted library may raise an error of its own
        if listener.stopped is None:
            raise
        raise listener.stopped from None
    finally:
        if outer is None:
            _listener = None
            listener.close()


@contextmanager
def going_on(tell: Callable[[str], str]) -> Iterator[None]:
    """Tell a person who interrupts this context how its work can continue.

    Args:
        tell: is called when a signal has come. It gets the words of the contexts inside this one
            ('' if there are none), and returns the end of the line.
    """
    if (listener := _listener) is None:
        yield
        return
    listener.going_on.append(tell)
    try:
        yield
    finally:
        listener.going_on.remove(tell)


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Hold signals back until this context ends.

    It is for work in parts that can be interrupted only between two of them. If a part takes longer
    than `PATIENCE_S`, the process is ended. Signal handlers that a library has set are replaced.

    Yields:
        A function that says whether a signal has come.
    """
    if (listener := _listener) is None or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    listener.handle_signals()
    listener.deferred += 1
    try:
        yield lambda: listener.received is not None
    finally:
        listener.deferred -= 1
    listener.stop()


@contextmanager
def unhurried() -> Iterator[None]:
    """Give this context `CLOSING_S` seconds to finish after a signal."""
    if (listener := _listener) is None:
        yield
        return
    listener.closing += 1
    try:
        yield
    finally:
        listener.closing -= 1


@contextmanager
def ending_children() -> Iterator[None]:
    """End child processes, and their children, when a signal ends this process."""
    if (listener := _listener) is None:
        yield
        return
    listener.ends_children = True
    try:
        yield
    except Stopped as stopped:
        with unhurried():
            end_children(wait_s=PATIENCE_S[stopped.number])
        raise


def end_children(wait_s: float) -> None:
    """Terminate the children of this process, then kill those that are left, and their children.

    Args:
        wait_s: seconds that they have to end.
    """
    mine = psutil.Process()
    processes = [each for each in mine.children(recursive=True) if not _is_tracker(each)]
    for each in mine.children():
        _send(each, signal.SIGTERM)
    _, left = psutil.wait_procs(processes, timeout=wait_s)
    for each in left:
        _send(each, signal.SIGKILL)


def _is_tracker(process: psutil.Process) -> bool:
    """Whether a process is the one with which multiprocessing frees shared memory.

    It ignores SIGTERM, and ends by itself after all others.
    """
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):  # the process has ended meanwhile
        process.send_signal(number)
